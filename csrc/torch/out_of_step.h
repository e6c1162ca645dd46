// Whether this rank is in step with the others: it has run out of budget, and they may not have.
//
// Ranks pair their collectives by order alone. One that leaves a step early and goes on pairs its
// next collective with one of the others' last step. So after an OutOfBudget, Python is asked
// before the next collective: see src/coop/distributed/out_of_step.py. Until then this costs a
// counter and a flag.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace coop {

class OutOfStep {
 public:
  // The program calls a c10d op, in a scope. Throws if the rank is out of step. No lock is held: it
  // may wait.
  static void before_collective(const std::string& op) {
    if (suspected_.load(std::memory_order_relaxed)) [[unlikely]]
      ask(op);
    count_.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  friend void bind_out_of_step(pybind11::module_& module);
  static void ask(const std::string& op);

  static std::atomic<bool> suspected_;
  static std::atomic<std::uint64_t> count_;  // collectives so far
};

void bind_out_of_step(pybind11::module_& module);

}  // namespace coop
