// The engine with a real mover and real tiers: random programs whose storages leave and come back
// beside them. At every read, the bytes of an unlimited run. The file is long because all tests use
// one driver with a faulty tier.
//
// Meant to be run under the thread sanitizer too: make sanitize-threads.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <list>
#include <memory>

#include "check.h"
#include "engine/engine.h"
#include "tiers/host_tier.h"
#include "tiers/mover.h"
#include "tiers/page_file.h"
#include "workers.h"

using namespace coop;

namespace {

using Values = std::vector<unsigned char>;
using Span = std::span<const unsigned char>;

// A tier as a busy machine has it: some transfers take their time; one in `trouble` fails, and
// leaves rubbish where it should have read to.
class RoughTier final : public Tier {
 public:
  RoughTier(Tier& tier, unsigned trouble) : tier_(tier), trouble_(trouble) {}
  std::uint32_t write(const void* memory, Bytes bytes) override {
    if (fails()) return 0;
    const std::uint32_t page = tier_.write(memory, bytes);
    pages += page != 0;
    return page;
  }
  bool read(std::uint32_t page, void* memory) override {
    const bool fail = fails();
    if (!tier_.read(page, memory)) return false;
    if (fail) *static_cast<unsigned char*>(memory) ^= 1;
    return !fail;
  }
  void drop(std::uint32_t page) override {
    --pages;
    tier_.drop(page);
  }
  std::atomic<int> pages{0}, failures{0};

 private:
  bool fails() {
    const unsigned call = ++calls_;
    if (call % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(call % 7 * 20));
    const bool fail = trouble_ && call % trouble_ == 0;
    failures += fail;
    return fail;
  }
  Tier& tier_;
  const unsigned trouble_;
  std::atomic<unsigned> calls_{0};
};

struct Recipe {
  std::uint64_t seed;
  Seconds cost;
};

struct Tensor {
  enum class State { in_arena, outside, lost };
  Values expected, own;  // own: after the end, outside the arena
  Storage* storage = nullptr;
  State state = State::in_arena;
};

// One byte of what an op makes.
unsigned char make_byte(std::uint64_t seed, Bytes i, std::span<const Span> inputs) {
  std::uint64_t hash = seed + i * 0xD1B54A32D192ED03ull;
  for (const Span input : inputs) hash = (hash ^ input[i % input.size()]) * 0xBF58476D1CE4E5B9ull ^ hash >> 29;
  return static_cast<unsigned char>(hash >> 56);
}

// Ops with up to two inputs and one output, or one that is overwritten.
class TierDriver final : public Driver {
 public:
  TierDriver(const Options& options, Tier& tier)
      : memory_(options.budget), tier_(tier), mover_(tier), engine_(options, *this) {}
  TierDriver(const TierDriver&) = delete;
  TierDriver& operator=(const TierDriver&) = delete;

  Engine& engine() { return engine_; }
  unsigned char* at(Bytes offset) { return memory_.data() + offset; }
  std::list<Tensor> tensors;
  std::atomic<int> recipes{0};
  std::uint64_t lost = 0;  // tensors that did not come back

  Tensor* make(const std::vector<Tensor*>& inputs, Bytes bytes, Seconds cost) {
    const std::vector<Storage*> edges = storages_of(inputs), operands = without_twins(edges);
    engine_.enter(operands);
    try {
      engine_.expect(engine_.side_of(cost / static_cast<double>(bytes)));
      const Block* block = engine_.allocate(bytes);
      const std::uint64_t seed = next_seed();
      Tensor& made = tensors.emplace_back();
      made.expected = unlimited(seed, inputs, bytes);
      compute(seed, spans_of(edges), at(block->offset), bytes);
      made.storage = engine_.bind(block->offset, bytes, &made);
      if (!inputs.empty() && !engine_.too_deep(operands)) {
        engine_.record(recipe(seed, cost), cost, edges, std::array{made.storage});
      }
      engine_.leave(operands);
      engine_.ran(cost);
      return &made;
    } catch (const Shortage&) {
      engine_.leave(operands);
      throw;
    }
  }
  // In place, from what it was and another.
  void overwrite(Tensor& target, Tensor& input, Seconds cost) {
    const std::vector<Storage*> storages = without_twins({target.storage, input.storage});
    engine_.before_overwrite(std::array{target.storage});
    engine_.enter(storages);
    engine_.overwriting(std::array{target.storage});
    Storage& storage = *target.storage;
    const std::uint64_t seed = next_seed();
    target.expected = unlimited(seed, {&target, &input}, target.expected.size());
    compute(seed, spans_of({&storage, input.storage}), at(storage.block->offset), storage.bytes);
    if (storage.producer) {
      Storage* old = engine_.split(storage);
      if (storage.versions < engine_.options().max_versions && !engine_.too_deep(storages)) {
        engine_.record(recipe(seed, cost), cost, std::array{old, input.storage}, std::array{&storage}, InPlace::on_old);
      }
      engine_.reconsider(*old);
    }
    engine_.leave(storages);
    engine_.ran(cost);
  }
  // Brings it back and compares it with the unlimited run.
  void read(Tensor& tensor) {
    CHECK(tensor.state != Tensor::State::lost);
    if (tensor.state == Tensor::State::outside) {
      CHECK(tensor.own == tensor.expected);
      return;
    }
    const std::array operands{tensor.storage};
    engine_.enter(operands);
    CHECK(std::equal(tensor.expected.begin(), tensor.expected.end(), at(tensor.storage->block->offset)));
    engine_.leave(operands);
  }
  // The tensor, to be let go: here, or on another thread.
  std::list<Tensor> hand_over(Tensor& tensor) {
    std::list<Tensor> handed;
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return &t == &tensor; });
    handed.splice(handed.end(), tensors, found);
    return handed;
  }
  void let_go(const std::list<Tensor>& handed) {
    for (const Tensor& tensor : handed) {
      if (tensor.state == Tensor::State::in_arena) engine_.let_go(*tensor.storage);
    }
  }

  // --- Driver ------------------------------------------------------------------------------------------------------------

  Seconds replay(Op& op, Block* target, Block** produced) override {
    const auto& how = *static_cast<const Recipe*>(op.recipe);
    std::vector<Span> inputs;
    for (std::uint32_t i = 0; i < op.inputs_count; ++i) {
      const Storage& input = *op.inputs()[i].storage;
      if (input.foreign) {
        inputs.emplace_back(static_cast<const Tensor*>(input.handle)->own);
      } else {
        inputs.emplace_back(at(target && i == 0 ? target->offset : input.block->offset), input.bytes);
      }
    }
    produced[0] = target ? target : engine_.allocate(op.output_bytes);
    compute(how.seed, inputs, at(produced[0]->offset), target ? op.target_bytes : op.output_bytes);
    return how.cost;
  }
  void detach(Storage& storage) override { std::memset(at(storage.block->offset), 0xEE, storage.bytes); }
  void attach(Storage&) override {}
  Seconds copy(Bytes to, Bytes from, Bytes bytes) override {
    std::memmove(at(to), at(from), bytes);
    return 0;
  }
  void drop(Op& op) override {
    delete static_cast<Recipe*>(op.recipe);
    --recipes;
  }
  void drop(Storage&) override {}
  bool evacuate(Storage& storage) override {
    auto& tensor = *static_cast<Tensor*>(storage.handle);
    tensor.own.assign(at(storage.block->offset), at(storage.block->offset) + storage.bytes);
    tensor.state = Tensor::State::outside;
    return true;
  }
  void abandon(Storage& storage) override {
    static_cast<Tensor*>(storage.handle)->state = Tensor::State::lost;
    ++lost;
  }
  std::uint64_t digest(Bytes offset, Bytes bytes) override {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    for (const unsigned char* p = at(offset); bytes; --bytes) hash = (hash ^ *p++) * 0x100000001b3ull;
    return hash | 1;
  }
  std::uint32_t begin_out(Bytes offset, Bytes bytes, Seconds) override { return mover_.begin_out(at(offset), bytes); }
  std::uint32_t begin_in(std::uint32_t page, Bytes offset, Bytes bytes, Seconds) override {
    return mover_.begin_in(page, at(offset), bytes);
  }
  void wait(std::uint32_t ticket, Seconds) override { mover_.wait(ticket); }
  Transfer finish(std::uint32_t ticket, Seconds) override { return mover_.finish(ticket); }
  bool cancel(std::uint32_t ticket) override { return mover_.cancel(ticket); }
  void drop_page(std::uint32_t page) override { tier_.drop(page); }

 private:
  std::uint64_t next_seed() { return ++seed_ * 0x9E3779B97F4A7C15ull; }
  Recipe* recipe(std::uint64_t seed, Seconds cost) {
    ++recipes;
    return new Recipe{seed, cost};
  }
  static std::vector<Storage*> storages_of(const std::vector<Tensor*>& tensors_in) {
    std::vector<Storage*> storages;
    for (const Tensor* tensor : tensors_in) storages.push_back(tensor->storage);
    return storages;
  }
  static std::vector<Storage*> without_twins(std::vector<Storage*> storages) {
    std::sort(storages.begin(), storages.end(), [](const Storage* a, const Storage* b) { return a->id < b->id; });
    storages.erase(std::unique(storages.begin(), storages.end()), storages.end());
    return storages;
  }
  std::vector<Span> spans_of(const std::vector<Storage*>& storages) {
    std::vector<Span> spans;
    for (const Storage* storage : storages) spans.emplace_back(at(storage->block->offset), storage->bytes);
    return spans;
  }
  static void compute(std::uint64_t seed, const std::vector<Span>& inputs, unsigned char* to, Bytes bytes) {
    for (Bytes i = 0; i < bytes; ++i) to[i] = make_byte(seed, i, inputs);
  }
  static Values unlimited(std::uint64_t seed, const std::vector<Tensor*>& inputs, Bytes bytes) {
    std::vector<Span> spans;
    for (const Tensor* tensor : inputs) spans.emplace_back(tensor->expected);
    Values values(bytes);
    compute(seed, spans, values.data(), bytes);
    return values;
  }

  Values memory_;
  Tier& tier_;
  Mover mover_;
  std::uint64_t seed_ = 0;
  Engine engine_;  // last: it tells the driver of every end
};

struct Totals {
  std::uint64_t programs = 0, out = 0, in = 0, hits = 0, replays = 0, shortages = 0, lost = 0, failures = 0;
  void print() const {
    std::printf(
        "\n    %llu programs, %llu swapped out, %llu in, %llu of them ahead, %llu replays, %llu shortages, %llu "
        "failures, "
        "%llu lost\n    ",
        static_cast<unsigned long long>(programs), static_cast<unsigned long long>(out),
        static_cast<unsigned long long>(in), static_cast<unsigned long long>(hits),
        static_cast<unsigned long long>(replays), static_cast<unsigned long long>(shortages),
        static_cast<unsigned long long>(failures), static_cast<unsigned long long>(lost));
  }
};

Options some_options(check::Random& random) {
  Options options;
  options.policy = std::array<const char*, 4>{"coop", "coop", "delta", "lru"}[random.below(4)];
  options.budget = random.between(8'000, 30'000);
  options.alignment = random.chance(50) ? 64 : 16;
  options.tiny = 0;
  options.max_depth = random.chance(30) ? 8 : 1u << 16;
  options.keep_dead = !random.chance(25);
  options.move = !random.chance(25);
  options.swap = true;
  options.swap_least = random.chance(50) ? 1 : 300;
  options.swap_load = random.chance(50) ? 0.5 : 0.01;
  options.checks = 2;
  return options;
}

// Steps that repeat, so that the history foresees them, and others. `let_go` gets what is not used
// any more.
template <typename LetGo>
void run(TierDriver& driver, check::Random& random, int steps, Totals& totals, LetGo let_go) {
  std::vector<Tensor*> live;
  const auto remove = [&](Tensor* tensor) {
    std::erase(live, tensor);
    let_go(driver.hand_over(*tensor));
  };
  const auto cost = [&] { return 1e-6 * static_cast<double>(random.between(1, random.chance(50) ? 20 : 5000)); };
  for (int i = 0; i < steps; ++i) {
    const check::Context step("step", i);
    Tensor* some = live.empty() ? nullptr : random.pick(live);
    try {
      const std::uint64_t what = random.below(100);
      if (live.size() < 3 || what < 10) {
        live.push_back(driver.make({}, random.between(1, 2500), cost()));
      } else if (what < 45) {
        live.push_back(driver.make({some, random.pick(live)}, random.between(1, 2500), cost()));
      } else if (what < 60) {
        Tensor* input = random.pick(live);
        if (input != some) driver.overwrite(*some, *input, cost());
      } else if (what < 85) {
        driver.read(*some);
      } else if (what < 87) {
        driver.engine().compact();
      } else if (what < 90) {
        driver.engine().commit(*some->storage);
      } else {
        remove(some);
      }
      while (live.size() > 30) remove(random.pick(live));
    } catch (const Shortage&) {
      ++totals.shortages;
      if (!live.empty()) remove(random.pick(live));
    } catch (const Lost&) {
      // An operand is lost, or was made from what is lost: each tensor that can be had is right.
      ++totals.lost;
      std::vector<Tensor*> gone;
      for (Tensor* tensor : live) {
        try {
          if (tensor->state != Tensor::State::lost) driver.read(*tensor);
        } catch (const Shortage&) {
        } catch (const Lost&) {
          gone.push_back(tensor);
        }
      }
      for (Tensor* tensor : std::vector(live)) {
        const bool lost = std::find(gone.begin(), gone.end(), tensor) != gone.end();
        if (lost || tensor->state == Tensor::State::lost) remove(tensor);
      }
    }
  }
}

void count(TierDriver& driver, Totals& totals) {
  const Stats stats = driver.engine().stats();
  ++totals.programs;
  totals.out += stats.swaps_out;
  totals.in += stats.swaps_in;
  totals.hits += stats.prefetch_hits;
  totals.replays += stats.replays;
}

// Every tensor has its bytes at the end, in the arena or moved out of it; then nothing is left, in
// memory or outside.
void end(TierDriver& driver, RoughTier& tier, bool retire) {
  if (retire) {
    driver.engine().retire(0);
    for (const Tensor& tensor : driver.tensors) CHECK(tensor.state != Tensor::State::in_arena);
  }
  for (Tensor& tensor : driver.tensors) {
    if (tensor.state == Tensor::State::lost) continue;
    try {
      driver.read(tensor);
    } catch (const Shortage&) {  // too much of it has been committed
    } catch (const Lost&) {
      CHECK(tier.failures > 0);
    }
  }
  driver.let_go(std::exchange(driver.tensors, {}));
  for (int i = driver.recipes + 1; i >= 0; --i) driver.engine().ran(0);  // records go a few at a time
  driver.engine().pack();                                                // after the last transfer
  driver.engine().check();
  CHECK(driver.engine().empty());
  CHECK_AT_MOST(driver.engine().stats().storages, driver.lost);  // the record of a lost one may stay, without bytes
  CHECK_EQUAL(driver.recipes.load(), 0);
  CHECK_EQUAL(tier.pages.load(), 0);
}

std::unique_ptr<Tier> some_tier(std::uint64_t seed, Bytes limit) {
  if (seed % 2) return std::make_unique<HostTier>(limit);
  return std::make_unique<PageFile>(std::filesystem::temp_directory_path().string(), limit);
}

void run_programs(int programs, unsigned trouble, Totals& totals) {
  for (int i = 1; i <= programs; ++i) {
    const check::Context context("seed", i);
    const auto seed = static_cast<std::uint64_t>(i);
    check::Random random(seed * 6151);
    Options options = some_options(random);
    const bool limited = random.chance(30);
    if (limited) options.max_depth = 8;  // what the tier refuses is made again, by few ops
    const auto kept = some_tier(seed, limited ? 2 * options.budget : 0);
    RoughTier tier(*kept, trouble);
    TierDriver driver(options, tier);
    run(driver, random, 300, totals, [&](const std::list<Tensor>& handed) { driver.let_go(handed); });
    count(driver, totals);
    end(driver, tier, seed % 4 < 2);
    totals.failures += static_cast<std::uint64_t>(tier.failures);
  }
}

// What a thread of a kernel does: it has its scratch for itself.
void use_scratch(TierDriver& driver, check::Random& random, std::atomic<int>& served) {
  const Bytes bytes = random.between(1, 600);
  try {
    const Block* block = driver.engine().allocate(bytes);
    unsigned char* at = driver.at(block->offset);
    const auto value = static_cast<unsigned char>(random.below(256));
    std::memset(at, value, bytes);
    std::this_thread::yield();
    for (Bytes i = 0; i < bytes; ++i) CHECK_EQUAL(at[i], value);
    driver.engine().free(block->offset);
    ++served;
  } catch (const Shortage&) {
  }
  std::this_thread::sleep_for(std::chrono::microseconds(20));  // the lock is not fair
}

}  // namespace

TEST(rules_1_to_8_hold_over_real_transfers_to_every_tier) {
  Totals totals;
  run_programs(check::rounds(40), 0, totals);
  totals.print();
  CHECK(totals.in > 10 * totals.programs && totals.replays > totals.programs && totals.hits > 0);
  CHECK_EQUAL(totals.lost, 0u);
}

TEST(transfers_that_fail_cost_time_or_are_told_and_never_give_wrong_bytes) {
  Totals totals;
  run_programs(check::rounds(40), 7, totals);
  totals.print();
  CHECK(totals.in > 10 * totals.programs && totals.failures > 3 * totals.programs && totals.lost > 0);
}

TEST(threads_allocate_free_and_let_go_while_transfers_run) {
  Totals totals;
  std::atomic<int> served{0};
  const int rounds = check::rounds(40);
  for (int i = 1; i <= rounds; ++i) {
    const check::Context context("seed", i);
    const auto seed = static_cast<std::uint64_t>(i);
    check::Random random(seed * 12289);
    const Options options = some_options(random);
    const auto kept = some_tier(seed, 0);
    RoughTier tier(*kept, 0);
    TierDriver driver(options, tier);
    std::mutex mutex;
    std::list<Tensor> waiting;
    const auto let_go_waiting = [&] {
      std::list<Tensor> handed;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        handed.swap(waiting);
      }
      driver.let_go(handed);
    };
    check::Workers workers;
    for (std::uint64_t thread = 0; thread < 2; ++thread) {
      workers.start(
          [&driver, &served, own = check::Random(seed * 10 + thread)]() mutable { use_scratch(driver, own, served); });
    }
    workers.start([&] {
      let_go_waiting();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    run(driver, random, 300, totals, [&](std::list<Tensor> handed) {
      const std::lock_guard<std::mutex> lock(mutex);
      waiting.splice(waiting.end(), handed);
    });
    workers.finish();
    let_go_waiting();
    count(driver, totals);
    end(driver, tier, false);
  }
  totals.print();
  CHECK(totals.in > 10 * totals.programs && served > rounds);
}
