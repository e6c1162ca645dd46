// Rules that were found broken where nobody can be told at once: a tensor dies, or things have to be put in order first.
// It is told at the next op.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace coop {

class Checks {
 public:
  // `inspect` throws std::logic_error if a rule does not hold now.
  Checks(int level, std::function<void()> inspect) : level_(level), inspect_(std::move(inspect)) {}

  // 1: cheap checks. 2: at every event, with digests of what leaves. 3: all that can leave does so after each op, and
  // what is free is overwritten.
  int level() const { return level_; }

  // Something has happened, and everything should be consistent again.
  void at_event() const {
    if (level_ >= 2) inspect_();
  }
  // The same, from a destructor.
  void at_event_of_death() noexcept {
    try {
      at_event();
    } catch (const std::exception& error) {
      broken(error.what());
    }
  }

  void broken(const char* rule) noexcept {
    if (rule_.empty()) rule_ = rule;
  }
  void throw_if_broken() {
    if (!rule_.empty()) throw std::logic_error(std::exchange(rule_, {}));
  }

 private:
  const int level_;
  const std::function<void()> inspect_;
  std::string rule_;  // the first one
};

}  // namespace coop
