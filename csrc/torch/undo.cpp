#include "torch/undo.h"

#include <algorithm>
#include <cstring>

namespace coop {

void Undo::remember(Scope& scope, const OpInfo& info, const torch::jit::Stack& stack,
                    const std::vector<Storage*>& statistics) {
  height_ = stack.size();
  saved_.clear();
  random_.clear();
  statistics_.clear();
  const std::size_t first = height_ - info.arguments.size();
  for (std::size_t i = first; i < height_; ++i) {
    if (info.arguments[i - first].taken && !stack[i].isNone()) saved_.emplace_back(i, stack[i]);
    if (stack[i].isGenerator()) remember(stack[i].toGenerator());
  }
  if (info.random) remember(at::detail::getDefaultCPUGenerator());
  for (Storage* storage : statistics) {
    statistics_.emplace_back(storage, std::string(static_cast<const char*>(scope.data(*storage)), storage->bytes));
  }
}

void Undo::remember(const at::Generator& generator) {
  if (generator.device().is_cpu()) {
    random_.emplace_back(generator, RandomState::of(*generator.get<at::CPUGeneratorImpl>()));
  }
}

void Undo::restore(Scope& scope, torch::jit::Stack& stack) const {
  for (const auto& [at, value] : saved_) stack[at] = value;
  for (const auto& [generator, state] : random_) state.restore(*generator.get<at::CPUGeneratorImpl>());
  for (const auto& [storage, bytes] : statistics_) {
    std::memcpy(const_cast<void*>(scope.data(*storage)), bytes.data(), bytes.size());
  }
}

void Undo::drop_results(const OpInfo& info, torch::jit::Stack& stack) const {
  stack.resize(std::min(stack.size(), height_ - info.arguments.size()));
  stack.resize(height_);
}

}  // namespace coop
