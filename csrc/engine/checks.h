// Broken rules. Where one is found broken and no exception can be thrown at once (a tensor is being
// destroyed, or the state has to be made consistent first), it is kept here and thrown at the next
// op.
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

  // 1: cheap checks. 2: checks at every event, with digests of the storages that leave. 3: also,
  // after each op everything that can leave does, and free bytes are overwritten.
  int level() const { return level_; }

  // After an event: everything has to be consistent again.
  void at_event() const {
    if (level_ >= 2) inspect_();
  }
  // The same where nothing may be thrown, as in a destructor.
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
  std::string rule_;  // the first that was found broken; empty: none
};

}  // namespace coop
