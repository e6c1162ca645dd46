// allocate, free and let_go from several threads while a program runs ops and has them recomputed.
//
// Meant to be run under the thread sanitizer too: make sanitize-threads.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "check.h"
#include "fake_driver.h"
#include "workers.h"

using namespace coop;
using fake::Call;
using fake::FakeDriver;
using fake::Tensor;

namespace {

// Tensors on their way to a thread that lets go of them.
class Queue {
 public:
  void put(std::list<Tensor> tensors) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tensors_.splice(tensors_.end(), tensors);
  }
  std::list<Tensor> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(tensors_, {});
  }

 private:
  std::mutex mutex_;
  std::list<Tensor> tensors_;
};

// What a thread of a kernel does: takes scratch, uses it, gives it back. It has the bytes for
// itself meanwhile.
void use_scratch(FakeDriver& driver, check::Random& random, std::atomic<std::uint64_t>& served) {
  struct Piece {
    Bytes offset, bytes;
    unsigned char value;
  };
  std::vector<Piece> pieces;
  for (int i = 0; i < 20; ++i) {
    if (pieces.size() < 3 && random.chance(60)) {
      try {
        const Bytes bytes = random.between(1, 300);
        const Block* block = driver.engine().allocate(bytes);
        pieces.push_back({block->offset, bytes, static_cast<unsigned char>(random.below(256))});
        std::memset(driver.at(block->offset, bytes), pieces.back().value, bytes);
        ++served;
      } catch (const Shortage&) {
      }
    } else if (!pieces.empty()) {
      const std::size_t k = random.below(pieces.size());
      const Piece piece = pieces[k];
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(k));
      const unsigned char* at = driver.at(piece.offset, piece.bytes);
      for (Bytes b = 0; b < piece.bytes; ++b) CHECK_EQUAL(at[b], piece.value);
      driver.engine().free(piece.offset);
    }
  }
  for (const Piece& piece : pieces) driver.engine().free(piece.offset);
  std::this_thread::sleep_for(std::chrono::microseconds(20));  // the lock is not fair
}

void run(const Options& options, std::uint64_t seed, int steps) {
  const check::Context a("policy", options.policy), b("seed", seed);
  FakeDriver driver(options);
  driver.patience = options.swap ? 3 : 0;
  driver.many_threads = true;
  Queue queue;
  std::atomic<std::uint64_t> served{0};
  check::Workers workers;
  for (std::uint64_t i = 0; i < 2; ++i) {
    workers.start(
        [&driver, &served, random = check::Random(seed * 10 + i)]() mutable { use_scratch(driver, random, served); });
  }
  workers.start([&] {
    for (Tensor& tensor : queue.take()) driver.engine().let_go(*tensor.storage);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  });

  check::Random random(seed);
  std::vector<Tensor*> live{driver.source(200), driver.source(100)};
  std::uint64_t shortages = 0;
  for (int i = 0; i < steps; ++i) {
    try {
      const std::uint64_t what = random.below(100);
      Tensor* some = random.pick(live);
      if (what < 50) {
        Call call{.inputs = {some, random.pick(live)},
                  .outputs = {random.between(1, 300)},
                  .cost = 1e-6 * static_cast<double>(random.between(1, 99))};
        if (random.chance(30)) call.outputs.push_back(random.between(1, 300));
        if (random.chance(30)) call.scratch.push_back(random.between(1, 300));
        for (Tensor* tensor : driver.run(call)) live.push_back(tensor);
      } else if (what < 60) {
        Call call{.inputs = {random.pick(live)}, .target = some, .in_place = InPlace::on_old};
        std::erase(call.inputs, some);
        driver.run(call);
      } else if (what < 75) {
        driver.read(*some);
      } else if (what < 78) {
        driver.pin(*some);
        driver.unpin(*some);
      } else if (what < 80) {
        driver.engine().compact();
      } else if (what < 81) {
        driver.engine().check();
      } else if (live.size() > 2) {
        std::erase(live, some);
        queue.put(driver.hand_over(*some));
      }
      while (live.size() > 25) {
        Tensor* gone = live[random.between(2, live.size() - 1)];
        std::erase(live, gone);
        queue.put(driver.hand_over(*gone));
      }
    } catch (const Shortage&) {
      ++shortages;
    }
  }
  workers.finish();
  for (Tensor& tensor : queue.take()) driver.engine().let_go(*tensor.storage);
  int read = 0;
  for (Tensor* tensor : live) {
    try {
      driver.read(*tensor);
      ++read;
    } catch (const Shortage&) {  // too much of it has been committed
    }
  }
  CHECK(read > 0 && served > 0);
  CHECK_AT_MOST(shortages, static_cast<std::uint64_t>(steps) / 2);
  CHECK(driver.engine().stats().evictions > 0);
  for (Tensor* tensor : live) driver.let_go(*tensor);
  driver.check_empty();
}

}  // namespace

TEST(kernels_threads_allocate_and_others_let_go_while_ops_run_and_are_replayed) {
  for (const std::string policy : {"coop", "dtr", "dte", "lru", "delta"}) {
    for (const bool keep_dead : {true, false}) {
      Options options;
      options.swap = keep_dead && (policy == "coop" || policy == "delta");
      options.swap_least = 1;
      options.policy = policy;
      options.budget = 5000;
      options.alignment = 16;
      options.tiny = 0;
      options.keep_dead = keep_dead;
      options.max_depth = 12;  // short recomputations, and many
      options.checks = 2;
      run(options, std::hash<std::string>()(policy) % 100 * 2 + keep_dead + 1, 600);
    }
  }
}
