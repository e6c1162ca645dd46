// What a kernel takes or changes although it fails, so that it can be run once more.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "torch/op_info.h"
#include "torch/recipe.h"
#include "torch/scope.h"

namespace coop {

class Undo {
 public:
  // Before the kernel runs. `statistics`: of a batch norm: small.
  void remember(Scope& scope, const OpInfo& info, const torch::jit::Stack& stack,
                const std::vector<Storage*>& statistics);
  // False: its results are on the stack already.
  bool possible(const torch::jit::Stack& stack) const { return stack.size() == height_; }
  // The arguments are on the stack as before, and nothing else has changed.
  void restore(Scope& scope, torch::jit::Stack& stack) const;
  // Results that the kernel left on the stack go.
  void drop_results(const OpInfo& info, torch::jit::Stack& stack) const;
  void forget() { saved_.clear(); }

 private:
  void remember(const at::Generator& generator);

  std::size_t height_ = 0;  // of the stack
  std::vector<std::pair<std::size_t, c10::IValue>> saved_;
  std::vector<std::pair<at::Generator, RandomState>> random_;
  std::vector<std::pair<Storage*, std::string>> statistics_;
};

}  // namespace coop
