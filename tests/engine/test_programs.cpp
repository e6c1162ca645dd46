// Random programs at random budgets, for every policy and every switch: at every read, the bytes of
// an unlimited run.
//
// Every rule check of the engine runs at every event (checks = 2), the driver checks victims and
// addresses, and in the end nothing may be left: not a byte, not a record.
#include <array>

#include "check.h"
#include "fake_driver.h"

using namespace coop;
using fake::Call;
using fake::FakeDriver;
using fake::Tensor;

namespace {

struct Totals {
  std::uint64_t programs = 0, ops = 0, compared = 0, evictions = 0, replays = 0, moves = 0, commits = 0, shortages = 0,
                failures = 0, windows = 0, lost = 0, swaps = 0;
};

std::string describe(const Options& o) {
  std::ostringstream text;
  text << "budget " << o.budget << " alignment " << o.alignment << " policy " << o.policy << " placement "
       << static_cast<int>(o.placement) << " cost " << static_cast<int>(o.cost) << " window " << o.window
       << " partition " << o.partition << " per_byte " << o.per_byte << " keep_dead " << o.keep_dead << " in_place "
       << o.in_place << " move " << o.move << " rescue " << o.rescue << " tiny " << o.tiny << " max_depth "
       << o.max_depth << " max_versions " << o.max_versions << " exact_limit " << o.exact_limit << " swap " << o.swap;
  return text.str();
}

class Program {
 public:
  Program(const Options& options, std::uint64_t seed, Totals& totals)
      : random_(seed),
        totals_(totals),
        live_(random_.between(4, 24)),
        driver_(options, random_.chance(50) ? 0 : random_.between(1, 4) * options.budget) {
    driver_.watch_requests();
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const check::Context context("step", i);
      try {
        step();
      } catch (const Shortage& shortage) {
        ++totals_.shortages;
        CHECK(shortage.needed > 0);
        CHECK(shortage.enough > shortage.budget);
      } catch (const fake::KernelError&) {
        ++totals_.failures;
      } catch (const fake::ReplayError&) {
        ++totals_.failures;
      }
      driver_.check_sums();
    }
    driver_.spoil_all(0);
  }

  // Every tensor that there is room for has its bytes.
  void read_all() {
    for (Tensor& tensor : driver_.tensors()) {
      if (tensor.gone) continue;
      try {
        driver_.read(tensor);
      } catch (const Shortage&) {
        ++totals_.shortages;
      }
    }
  }
  void let_go_all() {
    while (Tensor* tensor = any()) driver_.let_go(*tensor);
    driver_.check_empty();
  }
  // The end of a scope: everything that is held leaves the arena with its bytes, or is lost and
  // says so.
  void retire() {
    const std::size_t lost = driver_.retire();
    std::size_t abandoned = 0;
    for (Tensor& tensor : driver_.tensors()) {
      if (tensor.state == Tensor::State::abandoned) {
        ++abandoned;
      } else {
        CHECK_EQUAL(tensor.state == Tensor::State::attached, tensor.exposed);
        driver_.read(tensor);
      }
    }
    CHECK_EQUAL(abandoned, lost);
    totals_.lost += lost;
    let_go_all();
  }
  FakeDriver& driver() { return driver_; }

  // Nothing that is outside belongs to nobody.
  // They take up to so many polls.
  void wait_for_transfers(int polls) { driver_.patience = polls; }
  void check_pages() {
    if (driver_.engine().stats().storages == 0) CHECK_EQUAL(driver_.pages() + driver_.transfers(), 0u);
  }

  void count() {
    const Stats stats = driver_.engine().stats();
    ++totals_.programs;
    totals_.ops += stats.ops;
    totals_.compared += driver_.compared;
    totals_.evictions += stats.evictions;
    totals_.replays += stats.replays;
    totals_.moves += stats.moves;
    totals_.commits += stats.commits;
    totals_.windows += driver_.windows;
    totals_.swaps += stats.swaps_in;
  }

 private:
  template <typename Condition>
  Tensor* any(Condition condition) {
    std::vector<Tensor*> all;
    for (Tensor& tensor : driver_.tensors()) {
      if (!tensor.gone && condition(tensor)) all.push_back(&tensor);
    }
    return all.empty() ? nullptr : random_.pick(all);
  }
  Tensor* any() {
    return any([](const Tensor&) { return true; });
  }
  Tensor* any_managed() {
    return any([](const Tensor& tensor) { return tensor.state != Tensor::State::outside; });
  }
  Bytes size() {
    return random_.chance(10) ? random_.between(1, 40) : random_.between(40, random_.chance(20) ? 1200 : 400);
  }
  Seconds cost() { return static_cast<Seconds>(random_.between(1, 1000)) * (random_.chance(50) ? 1e-6 : 1e-4); }

  Call call() {
    Call made;
    for (std::uint64_t i = random_.between(1, 3); i; --i) {
      if (Tensor* tensor = any()) made.inputs.push_back(tensor);
    }
    for (std::uint64_t i = random_.chance(25) ? random_.between(1, 3) : 0; i; --i) made.scratch.push_back(size());
    made.cost = cost();
    made.record = !random_.chance(5);
    made.fails = random_.chance(3);
    return made;
  }

  void step() {
    const std::size_t count = driver_.tensors().size();
    const std::uint64_t what = random_.below(100);
    if (count < 3) {
      driver_.source(size());
    } else if (what < 34) {
      if (Tensor* tensor = any(); tensor && count > live_) driver_.let_go(*tensor);
      Call made = call();
      for (std::uint64_t i = random_.chance(25) ? random_.between(2, 3) : 1; i; --i) made.outputs.push_back(size());
      driver_.run(made);
    } else if (what < 50) {
      Call made = call();
      made.target = any();
      std::erase(made.inputs, made.target);
      made.in_place = random_.chance(30) ? InPlace::from_scratch : InPlace::on_old;
      if (random_.chance(20)) made.outputs.push_back(size());
      driver_.run(made);
    } else if (what < 62) {
      if (Tensor* tensor = any()) driver_.let_go(*tensor);
    } else if (what < 74) {
      if (Tensor* tensor = any()) driver_.read(*tensor);
    } else if (what < 77) {
      if (Tensor* tensor = any_managed()) driver_.pin(*tensor);
    } else if (what < 81) {
      if (Tensor* tensor = any([](const Tensor& t) { return t.pins > 0; })) driver_.unpin(*tensor);
      if (random_.chance(30)) driver_.unpin_rest();
    } else if (what < 83) {
      if (Tensor* tensor = any_managed()) driver_.engine().commit(*tensor->storage);
    } else if (what < 84) {
      if (Tensor* tensor = any_managed()) driver_.expose(*tensor);
    } else if (what < 86) {
      if (Tensor* tensor = any([](const Tensor& t) { return t.exposed; })) driver_.write_behind(*tensor);
    } else if (what < 88) {
      if (Tensor* tensor = any_managed()) driver_.engine().materialise(*tensor->storage);
    } else if (what < 89) {
      driver_.engine().compact();
    } else if (what < 92) {
      driver_.foreign(size());
    } else if (what < 94) {
      driver_.source(size());
    } else if (what < 95) {
      const auto idle = [](const Tensor& t) {
        return t.storage && !t.storage->foreign && t.storage->source() && !t.pins && !t.exposed &&
               t.state == Tensor::State::attached;
      };
      if (Tensor* tensor = any(idle)) driver_.refill(*tensor);
    } else if (what < 98) {
      driver_.spoil(random_.below(1u << 20));
    } else {
      read_all();
    }
  }

  check::Random random_;
  Totals& totals_;
  const std::size_t live_;
  FakeDriver driver_;
};

// The rest of the options, at random.
void vary(Options& options, check::Random& random) {
  options.alignment = std::array<Bytes, 4>{1, 16, 64, 128}[random.below(4)];
  options.tiny = random.chance(50) ? 0 : 64;
  options.max_depth = random.chance(20) ? 4 : 1u << 16;
  options.max_versions = random.chance(30) ? 1 : 8;
  options.exact_limit = random.chance(30) ? 2 : 64;
  options.copy_bandwidth = random.chance(50) ? 4e9 : 1e3;
  options.budget = random.between(1500, random.chance(50) ? 4000 : 10000);
  options.checks = 2;
}

void run_program(const Options& options, std::uint64_t seed, int steps, Totals& totals, int patience = 0) {
  const check::Context a("options", describe(options)), b("seed", seed);
  Program program(options, seed, totals);
  program.wait_for_transfers(patience);
  program.run(steps);
  program.read_all();
  program.count();
  if (seed % 2) {
    program.let_go_all();
  } else {
    program.retire();
  }
  program.check_pages();
}

void print(const char* what, const Totals& t) {
  std::printf(
      "\n    %s: %llu programs, %llu ops, %llu compared, %llu evictions, %llu replays, %llu moves, %llu windows, "
      "%llu shortages, %llu failures, %llu lost, %llu swapped in\n    ",
      what, static_cast<unsigned long long>(t.programs), static_cast<unsigned long long>(t.ops),
      static_cast<unsigned long long>(t.compared), static_cast<unsigned long long>(t.evictions),
      static_cast<unsigned long long>(t.replays), static_cast<unsigned long long>(t.moves),
      static_cast<unsigned long long>(t.windows), static_cast<unsigned long long>(t.shortages),
      static_cast<unsigned long long>(t.failures), static_cast<unsigned long long>(t.lost),
      static_cast<unsigned long long>(t.swaps));
}

}  // namespace

// The conformance suite: a policy passes it by being registered.
TEST(rules_1_to_8_hold_for_every_policy_and_every_switch) {
  Totals totals;
  const std::vector<std::string> policies = policy_names();
  constexpr std::array kPlacements{Placement::two_ended, Placement::best_fit};
  constexpr std::array kCosts{CostModel::own, CostModel::exact, CostModel::union_find};
  const int kinds = static_cast<int>(policies.size() * kPlacements.size() * kCosts.size() * 128);
  constexpr int kStride = 1609;  // prime: also the first few of them are of every kind
  const int rounds = check::rounds(kinds);
  for (int i = 0; i < rounds; ++i) {
    const auto which = static_cast<std::uint64_t>(i * kStride % kinds);
    const std::uint64_t switches = which % 128, seed = which + 1;
    check::Random random(seed);
    Options options;
    options.policy = policies[which / 768];
    options.placement = kPlacements[which / 384 % 2];
    options.cost = kCosts[which / 128 % 3];
    options.window = switches & 1;
    options.partition = switches & 2;
    options.per_byte = switches & 4;
    options.keep_dead = switches & 8;
    options.in_place = switches & 16;
    options.move = switches & 32;
    options.rescue = switches & 64;
    vary(options, random);
    run_program(options, seed, 60, totals);
  }
  print("all switches", totals);
  CHECK(totals.evictions > 3 * totals.programs && totals.replays > 3 * totals.programs);
  CHECK(totals.shortages > totals.programs / 3 && totals.failures > totals.programs / 30);
}

TEST(rules_1_to_8_hold_where_storages_leave_with_their_bytes) {
  Totals totals;
  const auto rounds = static_cast<std::uint64_t>(check::rounds(1500));
  for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
    check::Random random(seed * 104729);
    Options options;
    options.policy = std::array<const char*, 4>{"coop", "coop", "delta", "lru"}[seed % 4];
    options.keep_dead = !random.chance(25);
    options.in_place = !random.chance(25);
    options.move = !random.chance(25);
    options.rescue = !random.chance(25);
    options.swap = true;
    options.swap_least = random.chance(50) ? 1 : 200;
    options.swap_out = options.swap_in = std::array{1e2, 1e5, 1e9}[random.below(3)];
    vary(options, random);
    run_program(options, seed, 80, totals, static_cast<int>(seed % 4) * 3);
  }
  print("swapping", totals);
  CHECK(totals.swaps > 3 * totals.programs && totals.replays > 3 * totals.programs);
}

TEST(rules_1_to_8_hold_over_long_programs) {
  Totals totals;
  const auto rounds = static_cast<std::uint64_t>(check::rounds(40));
  for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
    check::Random random(seed * 7919);
    Options options;
    options.policy = std::array<const char*, 5>{"coop", "coop", "dtr", "dte", "lru"}[seed % 5];
    options.keep_dead = !random.chance(25);
    options.in_place = !random.chance(25);
    options.move = !random.chance(25);
    options.rescue = !random.chance(25);
    vary(options, random);
    run_program(options, seed, 1000, totals);
  }
  print("long", totals);
}

TEST(with_room_for_everything_nothing_is_evicted_searched_or_replayed) {
  Totals totals;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const check::Context context("seed", seed);
    Options options;
    options.budget = 1 << 20;
    options.checks = 2;
    Program program(options, seed, totals);
    program.run(100);
    const Stats before = program.driver().engine().stats();
    CHECK_EQUAL(before.searches, 0u);
    CHECK_EQUAL(totals.shortages, 0u);
    program.let_go_all();
  }
}

TEST(without_eviction_memory_is_only_measured) {
  Totals totals;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Options options;
    vary(options, random);
    options.evict = false;
    Program program(options, seed, totals);
    program.run(200);
    program.read_all();
    const Stats stats = program.driver().engine().stats();
    CHECK_EQUAL(stats.recorded_ops, 0u);
    CHECK_EQUAL(stats.evictions, 0u);
    CHECK_EQUAL(stats.replays, 0u);
    program.let_go_all();
  }
}
