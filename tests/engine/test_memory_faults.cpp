// Rule 8 where the host has no memory: from the n-th operator new inside the engine on, there is
// none, for each n in turn.
//
// The engine has its reserve (reserve.h), and what it has given is all that is left. Only what the
// engine itself allocates fails: the driver here allocates nothing. After each std::bad_alloc the
// rules hold, the call can be made again once there is memory, and the program goes on to the right
// bytes.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>

#include "check.h"
#include "engine/engine.h"
#include "engine/reserve.h"
#include "tiers/host_tier.h"
#include "tiers/page_file.h"

namespace {

thread_local long until_failure = 0;  // allocations of the engine; 0: all is well
thread_local bool in_engine = false, empty = false, failed = false;
thread_local std::size_t left = 0;  // of the reserve, while there is nothing else

void* take(std::size_t bytes) {
  if (in_engine && until_failure && --until_failure == 0) empty = failed = true;
  while (in_engine && empty && left < bytes) {
    const std::new_handler handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    handler();
    left = coop::Reserve::kBytes;
  }
  if (in_engine && empty) left -= bytes;
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return take(bytes); }
void* operator new[](std::size_t bytes) { return take(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {  // the address sanitizer has one of its own
  try {
    return take(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace coop;
constexpr Bytes kSize = 1024;
constexpr int kTensors = 24;

// Tensor 0 is a source; tensor i is tensor i - 1 with i added to each byte.
class ChainDriver final : public Driver {
 public:
  explicit ChainDriver(const Options& options) : engine(options, *this) {}

  Seconds replay(Op& op, Block*, Block** produced) override {
    const int number = *static_cast<int*>(op.recipe);
    Block* block = engine.allocate(kSize);
    compute(number, at(*op.inputs()->storage), memory + block->offset);
    produced[0] = block;
    return 1e-6;
  }
  void detach(Storage& storage) override { std::memset(at(storage), 0xEE, kSize); }
  void attach(Storage&) override {}
  Seconds copy(Bytes to, Bytes from, Bytes bytes) override {
    std::memmove(memory + to, memory + from, bytes);
    return 0;
  }
  void drop(Op&) override {}
  void drop(Storage&) override {}
  bool evacuate(Storage&) override { return true; }
  void abandon(Storage&) override {}
  std::uint64_t digest(Bytes, Bytes) override { return 1; }
  std::uint32_t begin_out(Bytes, Bytes, Seconds) override { return 0; }
  std::uint32_t begin_in(std::uint32_t, Bytes, Bytes, Seconds) override { return 0; }
  Transfer finish(std::uint32_t, Seconds) override { return {}; }
  bool cancel(std::uint32_t) override { return false; }

  unsigned char* at(const Storage& storage) { return memory + storage.block->offset; }
  static void compute(int number, const unsigned char* from, unsigned char* to) {
    for (Bytes i = 0; i < kSize; ++i) to[i] = static_cast<unsigned char>(from[i] + number);
  }

  unsigned char memory[16 * kSize] = {};
  int numbers[kTensors] = {};
  Storage* storages[kTensors] = {};
  Engine engine;
};

struct Inside {
  Inside() { in_engine = true; }
  ~Inside() { in_engine = false; }
};

// Makes the call until it goes through.
template <typename Function>
auto call(ChainDriver& driver, const char* what, Function function) {
  const check::Context context("in", what);
  for (;;) {
    try {
      const Inside inside;
      return function();
    } catch (const std::bad_alloc&) {
      CHECK(failed);
      driver.engine.check();
      empty = false;  // whoever had it has given it back
      left = 0;
    }
  }
}

void run(ChainDriver& driver) {
  Engine& engine = driver.engine;
  for (int i = 0; i < kTensors; ++i) {
    driver.numbers[i] = i;
    Storage* input[] = {i ? driver.storages[i - 1] : nullptr};
    const std::span<Storage* const> inputs(input, i ? 1 : 0);
    call(driver, "enter", [&] { engine.enter(inputs); });
    Block* block = call(driver, "allocate", [&] { return engine.allocate(kSize); });
    if (i) {
      ChainDriver::compute(i, driver.at(*input[0]), driver.memory + block->offset);
    } else {
      std::memset(driver.memory + block->offset, 7, kSize);
    }
    Storage* made[] = {call(driver, "bind", [&] { return engine.bind(block->offset, kSize, &driver.storages[i]); })};
    driver.storages[i] = made[0];
    if (i) call(driver, "record", [&] { engine.record(&driver.numbers[i], 1e-6, inputs, made); });
    call(driver, "leave", [&] { engine.leave(inputs); });
    call(driver, "ran", [&] { engine.ran(1e-6); });
  }
  for (int i = kTensors - 1; i >= 0; i -= 5) {
    Storage* goal[] = {driver.storages[i]};
    call(driver, "enter", [&] { engine.enter(goal); });
    const auto expected = static_cast<unsigned char>(7 + i * (i + 1) / 2);
    for (Bytes k = 0; k < kSize; ++k) CHECK_EQUAL(driver.at(*goal[0])[k], expected);
    call(driver, "leave", [&] { engine.leave(goal); });
  }
  for (Storage* storage : driver.storages) call(driver, "let_go", [&] { engine.let_go(*storage); });
}

}  // namespace

TEST(an_engine_without_memory_of_its_own_stays_consistent) {
  for (const std::string policy : {"coop", "dtr", "lru"}) {
    long n = 1;
    for (bool more = true; more; ++n) {
      const check::Context context("allocation", n);
      Options options;
      options.budget = 8 * kSize;
      options.alignment = 64;
      options.policy = policy;
      options.window = policy == "coop";
      options.checks = 1;
      ChainDriver driver(options);
      failed = empty = false;
      left = 0;
      until_failure = n;
      try {
        run(driver);
      } catch (...) {
        until_failure = 0;
        throw;
      }
      until_failure = 0;
      more = failed;
      driver.engine.check();
      CHECK(driver.engine.stats().evictions > 0);
    }
    CHECK(n > 20);
  }
}

// Sizes that come and go; in memory they have to give way to each other.
static void use_tier(Tier& tier) {
  struct Page {
    std::uint32_t slot;
    Bytes bytes;
    unsigned char value;
  };
  constexpr Bytes kMost = 400;
  std::vector<Page> pages;
  unsigned char from[kMost], to[kMost];
  check::Random random(1);
  // False: there was no memory, and nothing happened.
  const auto try_to = [](auto function) {
    try {
      const Inside inside;
      function();
      return true;
    } catch (const std::bad_alloc&) {
      CHECK(failed);
      empty = false;
      return false;
    }
  };
  const auto check_all = [&] {
    for (const Page& page : pages) {
      CHECK(tier.read(page.slot, to));
      for (Bytes i = 0; i < page.bytes; ++i) CHECK_EQUAL(to[i], page.value);
    }
  };
  for (int i = 0; i < 120; ++i) {
    const check::Context context("step", i);
    if (pages.size() < 12 && random.chance(60)) {
      Page page{0, random.between(1, 4) * 100, static_cast<unsigned char>(i)};
      std::memset(from, page.value, page.bytes);
      if (!try_to([&] { page.slot = tier.write(from, page.bytes); })) check_all();
      if (page.slot) pages.push_back(page);
    } else if (!pages.empty()) {
      const Page page = pages.back();
      pages.pop_back();
      CHECK(try_to([&] { tier.drop(page.slot); }));  // nobody can be told: it takes no memory
    }
  }
  check_all();
  for (const Page& page : pages) tier.drop(page.slot);
  const bool room = tier.write(from, kMost) != 0;
  CHECK(room);
}

TEST(a_tier_without_memory_refuses_pages_and_keeps_those_it_has) {
  for (const bool in_memory : {true, false}) {
    const check::Context which("tier", in_memory ? "memory" : "file");
    long n = 1;
    for (bool more = true; more; ++n) {
      const check::Context context("allocation", n);
      std::unique_ptr<Tier> tier;
      if (in_memory) {
        tier = std::make_unique<HostTier>(1500);
      } else {
        tier = std::make_unique<PageFile>(std::filesystem::temp_directory_path().string());
      }
      const std::new_handler reserve = std::set_new_handler(nullptr);
      failed = empty = false;
      left = 0;
      until_failure = n;
      try {
        use_tier(*tier);
      } catch (...) {
        until_failure = 0;
        std::set_new_handler(reserve);
        throw;
      }
      until_failure = 0;
      std::set_new_handler(reserve);
      more = failed;
    }
    CHECK(n > 5);
  }
}
