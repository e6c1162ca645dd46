// Whether an op gives the same bits when it is run again: a tensor must not have two values in one
// program.
//
// Most do, in the same settings. On the CPU these do not:
// - ops that write, or add float32 with atomics, to places that indices name: on several threads,
//   in any order. Deterministic mode makes them serial, and so does a small number of elements;
// - ops that unpool to indices that may collide: PyTorch warns of them itself;
// - least squares by pivoting: LAPACK reads pivots that nothing has set. tests/opinfo derives this
//   list: from PyTorch's own alerts, and by running every operator again on two threads.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string_view>

namespace coop {

class SameAgain {
 public:
  SameAgain() = default;
  // Of an operator of PyTorch's own, by its name without overload.
  SameAgain(std::string_view name, const c10::FunctionSchema& schema);

  // It depends on the arguments and the settings.
  bool in_doubt() const { return kind_ != Kind::always; }
  // A call with these arguments, in the present settings.
  bool holds(const torch::jit::Stack& stack) const { return kind_ == Kind::always || holds_in_doubt(stack); }

 private:
  enum class Kind : std::uint8_t { always, unless_scattered, unless_pivoted, never };

  bool holds_in_doubt(const torch::jit::Stack& stack) const;
  const c10::IValue& at(const torch::jit::Stack& stack, int argument) const;

  Kind kind_ = Kind::always;
  std::size_t arguments_ = 0;
  bool adds_ = false;                                              // whatever its arguments say
  bool alerts_ = false;                                            // PyTorch alerts, unless it accumulates
  int places_ = -1, values_ = -1, accumulate_ = -1, driver_ = -1;  // arguments
};

}  // namespace coop
