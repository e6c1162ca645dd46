// What comes next: a step that repeats is known after the first time, and a guess that is wrong
// breaks no rule.
#include <algorithm>
#include <vector>

#include "check.h"
#include "engine/history.h"
#include "fake_driver.h"

using namespace coop;
using fake::FakeDriver;
using fake::Tensor;

namespace {

// A step of ops; each uses parameters or what was born in this step, by number.
struct Step {
  static constexpr std::size_t kParameters = 6;
  struct Line {
    std::vector<std::size_t> uses;
    bool births;
  };
  std::vector<Line> lines;

  static Step random(check::Random& random) {
    Step step;
    std::size_t alive = kParameters;
    for (std::uint64_t i = random.between(5, 40); i; --i) {
      Line line{{}, random.chance(70)};
      for (std::uint64_t k = random.between(1, 3); k; --k) {
        const std::size_t use = random.below(alive);
        if (std::find(line.uses.begin(), line.uses.end(), use) == line.uses.end()) line.uses.push_back(use);
      }
      alive += line.births;
      step.lines.push_back(line);
    }
    return step;
  }
  // Rounds that look alike, there and back again: each makes a state from the last one, in some
  // ops, and every so often what only the way back uses.
  static Step recurrent(check::Random& random) {
    Step step;
    const std::size_t rounds = random.between(3, 12), length = random.between(1, 3), saved = random.between(0, length);
    std::size_t born = kParameters, last = random.below(kParameters);
    std::vector<std::size_t> states;
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < length; ++i) {
        const std::size_t parameter = i % kParameters;
        step.lines.push_back({{last}, true});
        if (last != parameter) step.lines.back().uses.push_back(parameter);
        last = born++;
        if (i == saved) states.push_back(last);
      }
      states.push_back(last);
    }
    for (std::size_t i = states.size(); i-- > 0;) {
      step.lines.push_back({{last}, true});
      if (last != states[i]) step.lines.back().uses.push_back(states[i]);
      last = born++;
    }
    return step;
  }
};

// How many ops later the storage is used next; one that is born in a step is not used after it.
Seconds next_use(const Step& step, std::size_t from, std::size_t storage) {
  const std::size_t length = step.lines.size();
  for (std::size_t i = from + 1; i < (storage < Step::kParameters ? from + length + 1 : length); ++i) {
    const auto& uses = step.lines[i % length].uses;
    if (std::find(uses.begin(), uses.end(), storage) != uses.end()) return static_cast<Seconds>(i - from);
  }
  return 0;
}

// Runs steps, each op a second long, and tells what is said of the storages of an op. All that is
// born may look alike, and die when it has been used for the last time, or stay to the end of the
// step.
class Runner {
 public:
  explicit Runner(bool alike = false) : alike_(alike) {
    for (std::size_t i = 0; i < Step::kParameters; ++i) parameters_[i].bytes = 64 * (i + 1);
  }
  template <typename Told>
  void run(const Step& step, Told told) {
    std::vector<Storage*> all;
    for (Storage& parameter : parameters_) all.push_back(&parameter);
    for (std::size_t i = 0; i < step.lines.size(); ++i) {
      std::vector<Storage*> used;
      for (const std::size_t use : step.lines[i].uses) used.push_back(all[use]);
      history_.used(used, now_);
      for (std::size_t k = 0; k < used.size(); ++k) told(i, step.lines[i].uses[k], history_.next(*used[k]).idle);
      if (step.lines[i].births) {
        Storage& born = born_.emplace_back();
        born.bytes = alike_ ? 1000 : 1000 + i;
        history_.born(born);
        all.push_back(&born);
      }
      if (alike_) {
        for (const std::size_t use : step.lines[i].uses) {
          if (use >= Step::kParameters && next_use(step, i, use) == 0) history_.forgotten(*all[use]);
        }
      }
      now_ += 1;
    }
    for (std::size_t i = Step::kParameters; i < all.size(); ++i) history_.forgotten(*all[i]);
  }
  bool known() const { return history_.known(); }
  std::size_t lives() const { return history_.lives(); }
  // Uses a parameter, in an op of its own.
  void use(std::size_t parameter) {
    Storage* const used[] = {&parameters_[parameter]};
    history_.used(used, now_++);
  }
  StepHistory::Next next(std::size_t parameter) { return history_.next(parameters_[parameter]); }

 private:
  const bool alike_;
  StepHistory history_;
  Storage parameters_[Step::kParameters];
  std::list<Storage> born_;
  Seconds now_ = 0;
};

void check_that_next_uses_are_known(Step (*make)(check::Random&), bool alike) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    const Step step = make(random);
    Runner runner(alike);
    for (int i = 0; i < 2; ++i) runner.run(step, [](std::size_t, std::size_t, Seconds) {});
    std::size_t told = 0;
    for (int i = 0; i < 3; ++i) {
      runner.run(step, [&](std::size_t line, std::size_t storage, Seconds idle) {
        const Seconds expected = next_use(step, line, storage);
        if (expected == 0) return;  // it is not used any more
        CHECK_EQUAL(idle, expected);
        ++told;
      });
      CHECK(runner.known());
    }
    CHECK(told > 0);
  }
}

}  // namespace

TEST(the_third_time_a_step_runs_every_next_use_is_known) { check_that_next_uses_are_known(Step::random, false); }

TEST(rounds_that_look_alike_are_told_apart) {
  check_that_next_uses_are_known(Step::random, true);
  check_that_next_uses_are_known(Step::recurrent, true);
}

TEST(another_step_in_between_is_no_harm) {
  std::size_t right = 0, all = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    const Step step = Step::random(random), other = Step::random(random);
    Runner runner;
    const auto ignore = [](std::size_t, std::size_t, Seconds) {};
    for (int i = 0; i < 3; ++i) runner.run(step, ignore);
    runner.run(other, ignore);
    for (int i = 0; i < 2; ++i) {
      runner.run(step, [&](std::size_t line, std::size_t storage, Seconds idle) {
        if (i == 0) return;
        const Seconds expected = next_use(step, line, storage);
        if (expected == 0 || line + static_cast<std::size_t>(expected) >= step.lines.size()) return;
        ++all;
        right += idle == expected;
      });
    }
  }
  CHECK(right * 10 > all * 9);
}

TEST(a_long_log_forgets_the_oldest_and_still_knows_what_comes) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    const Step step = seed % 2 ? Step::recurrent(random) : Step::random(random);
    Runner runner(seed % 2);
    const std::size_t steps = 40000 / step.lines.size();
    std::size_t told = 0;
    for (std::size_t i = 0; i < steps; ++i) {
      runner.run(step, [&](std::size_t line, std::size_t storage, Seconds idle) {
        const Seconds expected = next_use(step, line, storage);
        if (i + 3 < steps || expected == 0) return;
        CHECK_EQUAL(idle, expected);
        ++told;
      });
    }
    CHECK(told > 0);
    CHECK(runner.lives() < 10000);  // 8,192 entries with a birth each, and the parameters
  }
}

TEST(what_was_not_used_again_the_last_time_is_not_expected_at_any_time) {
  Step step;
  for (std::size_t i = 0; i + 2 < Step::kParameters; ++i) step.lines.push_back({{0, i + 1}, false});
  Runner runner;
  const auto ignore = [](std::size_t, std::size_t, Seconds) {};
  runner.use(Step::kParameters - 1);
  for (int i = 0; i < 3; ++i) runner.run(step, ignore);
  CHECK(runner.known());
  const StepHistory::Next unused = runner.next(Step::kParameters - 1), used = runner.next(0);
  CHECK(!unused.used && unused.idle > used.idle);
  CHECK(used.used);
}

TEST(what_a_step_that_repeats_needs_is_there_in_time) {
  for (const std::string policy : {"coop", "delta"}) {
    for (const int patience : {0, 2}) {
      const check::Context a("policy", policy), b("patience", patience);
      Options options;
      options.budget = 64 * 64;
      options.tiny = 0;
      options.policy = policy;
      options.swap = true;
      options.swap_least = 1;
      options.swap_out = options.swap_in = 1e8;
      options.swap_load = 0;  // ops lose nothing by transfers beside them
      options.checks = 2;
      FakeDriver driver(options);
      driver.page_rate = 1e8;
      driver.patience = patience;
      std::vector<Tensor*> parameters;
      for (int i = 0; i < 20; ++i) parameters.push_back(driver.source(64 * 6));  // twice the budget
      Stats before;
      for (int step = 0; step < 8; ++step) {
        if (step == 3) before = driver.engine().stats();
        for (Tensor* parameter : parameters) {
          driver.let_go(*driver.run({.inputs = {parameter}, .outputs = {64}, .cost = 1e-4}).front());
        }
        for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
          driver.run({.target = *parameter, .cost = 1e-4, .record = false});
        }
      }
      const Stats after = driver.engine().stats();
      const std::uint64_t hits = after.prefetch_hits - before.prefetch_hits,
                          misses = after.prefetch_misses - before.prefetch_misses;
      const check::Context c("hits", hits), d("misses", misses);
      CHECK(hits > 50);
      CHECK(hits > 5 * misses);
      CHECK(after.hidden_seconds > after.transfer_seconds / 2);
      for (Tensor* parameter : parameters) driver.read(*parameter);
      for (Tensor* parameter : parameters) driver.let_go(*parameter);
      driver.check_empty();
    }
  }
}
