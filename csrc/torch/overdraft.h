// Memory beyond the budget for one op that has failed, to see what it takes: a tip can only promise
// what is known. What the op makes is dropped, and the memory goes back to the system with it.
#pragma once

#include "torch/scope.h"

namespace coop {

class Overdraft {
 public:
  // Only as much as the system has to spare by far, and at most three times the budget.
  Overdraft(Scope& scope, Bytes at_least);
  ~Overdraft() { end_if_possible(scope_); }
  Overdraft(const Overdraft&) = delete;
  Overdraft& operator=(const Overdraft&) = delete;

  bool granted() const { return granted_; }

  // Ends one that could not be ended before, because another thread had memory there.
  static void end_if_possible(Scope& scope);

 private:
  Scope& scope_;
  bool granted_ = false;
};

}  // namespace coop
