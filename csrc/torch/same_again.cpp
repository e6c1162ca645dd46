// Looking at the arguments of those ops that are in doubt.
#include "torch/same_again.h"

#include <ATen/Context.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "torch/threads.h"

namespace coop {
namespace {

using Name = std::string_view;
constexpr Name kMaskedSum = "_unsafe_masked_index_put_accumulate";
constexpr Name kScatter[] = {"index_put", "_index_put_impl", "_unsafe_index_put", "put", "index_copy", kMaskedSum};
constexpr Name kNever[] = {"max_unpool2d", "max_unpool3d"};
constexpr Name kPivots = "linalg_lstsq";

bool is_mask(const at::Tensor& index) { return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte; }

// How many elements are written, and whether each has a place of its own: masks name no place
// twice.
struct Places {
  std::int64_t count = 0;
  bool distinct = true;
};

Places named_by(const at::Tensor& self, c10::ArrayRef<c10::IValue> indices) {
  std::vector<std::int64_t> all;  // sizes of the broadcast indices, the last first
  std::int64_t rest = 1, dim = 0;
  bool masks = false;
  Places places;
  for (const c10::IValue& item : indices) {
    if (!item.isTensor() || !item.toTensor().defined()) {
      rest *= self.size(dim++);
      continue;
    }
    const at::Tensor& index = item.toTensor();
    if (is_mask(index)) {
      masks = true;
      dim += index.dim();
      continue;
    }
    places.distinct = false;
    const auto sizes = index.sizes();
    all.resize(std::max(all.size(), sizes.size()), 1);
    for (std::size_t i = 0; i < sizes.size(); ++i) all[i] = std::max(all[i], sizes[sizes.size() - 1 - i]);
    ++dim;
  }
  for (; dim < self.dim(); ++dim) rest *= self.size(dim);
  for (const std::int64_t size : all) rest *= size;
  places.count = masks ? std::max(rest, self.numel()) : rest;
  return places;
}

}  // namespace

SameAgain::SameAgain(std::string_view name, const c10::FunctionSchema& schema) : arguments_(schema.arguments().size()) {
  if (name.ends_with('_')) name.remove_suffix(1);
  const auto argument = [&](const char* wanted) { return schema.argumentIndexWithName(wanted).value_or(-1); };
  if (std::find(std::begin(kScatter), std::end(kScatter), name) != std::end(kScatter)) {
    kind_ = Kind::unless_scattered;
    places_ = std::max(argument("indices"), argument("index"));
    values_ = std::max(argument("values"), argument("source"));
    accumulate_ = argument("accumulate");
    adds_ = name == kMaskedSum;
    alerts_ = name == "put";
  } else if (std::find(std::begin(kNever), std::end(kNever), name) != std::end(kNever)) {
    kind_ = Kind::never;
  } else if (name == kPivots) {
    kind_ = Kind::unless_pivoted;
    driver_ = argument("driver");
  }
}

const c10::IValue& SameAgain::at(const torch::jit::Stack& stack, int argument) const {
  return stack[stack.size() - arguments_ + static_cast<std::size_t>(argument)];
}

bool SameAgain::holds_in_doubt(const torch::jit::Stack& stack) const {
  if (kind_ == Kind::never) return false;
  if (kind_ == Kind::unless_pivoted) {
    const c10::IValue& driver = at(stack, driver_);
    return !driver.isNone() && driver.toStringRef() != "gelsy";
  }
  if (at::globalContext().deterministicAlgorithms() || Threads::of_openmp() == 1) return true;
  const at::Tensor& self = at(stack, 0).toTensor();
  const at::Tensor& values = at(stack, values_).toTensor();
  const bool adds = adds_ || (accumulate_ >= 0 && at(stack, accumulate_).toBool());
  if (adds && self.scalar_type() != at::kFloat) return true;
  if (!adds && alerts_) return false;
  if (!adds && values.numel() == 1) return true;  // all threads write the same value
  const c10::IValue& places = at(stack, places_);
  const Places named = places.isList() ? named_by(self, places.toListRef()) : Places{values.numel(), false};
  return named.distinct || named.count < at::internal::GRAIN_SIZE;
}

}  // namespace coop
