// What the hook needs to know of an operator, read once from its schema.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "engine/types.h"
#include "torch/same_again.h"

namespace coop {

struct ArgumentInfo {
  enum class Kind : std::uint8_t { other, tensor, tensor_list, tensor_lists, generator };
  Kind kind = Kind::other;
  bool written = false;
  bool taken = false;  // the kernel takes the value off the stack: a second try needs a copy of it
};

struct OpInfo {
  enum class Kind : std::uint8_t {
    pass,      // made of other ops, which come here themselves; or touches no data
    view,      // returns views, or changes a tensor's shape: reads and writes no data
    reshape,   // may replace a tensor's storage: resize_, set_
    compute,   // reads, and returns something new
    overwrite  // writes into arguments
  };

  explicit OpInfo(const c10::OperatorHandle& handle);

  c10::OperatorHandle op;
  std::string name;
  std::vector<ArgumentInfo> arguments;
  Kind kind = Kind::compute;
  bool replayable = true;  // a pure function of its arguments and of the random state
  bool random = false;
  bool collective = false;     // of c10d: other threads read and write its tensors, also when it has returned
  bool shape_only = false;     // looks at its tensors' shapes, not at their bytes: zeros_like
  bool factory = false;        // no tensor's bytes go in
  bool unset = false;          // leaves its output's bytes undefined: empty
  bool fills = false;          // in place, and does not read what it overwrites: zero_
  bool accumulates = false;    // one of the ops by which autograd stores a gradient in its leaf
  bool batch_norm = false;     // writes running statistics although its schema may not say so
  int training_argument = -1;  // of a batch norm: its results depend on the statistics only if this is false; -1: never
  bool points_to_all = false;  // composite: may hold a pointer to any tensor, not to integers only
  int statistics = 0;          // the index of the first of the two running statistics
  bool is_statistics(std::size_t argument) const {
    return static_cast<int>(argument) == statistics || static_cast<int>(argument) == statistics + 1;
  }
  bool multiplies = false;  // its kernel may use oneDNN's precision of float32
  int ragged_result = -1;   // that has bytes which are undefined
  SameAgain same_again;
  std::size_t returns = 0;
  double density = 0;  // measured, seconds per byte of output; moving average, 0: not known yet

  // A single measurement says as much about the machine's other work as about the op. This follows
  // the fast runs of this op with this much output: down at once, up slowly.
  Seconds typical_cost(Bytes output_bytes, Seconds measured);

  static OpInfo& of(const c10::OperatorHandle& op);

 private:
  struct Typical {
    Bytes bytes = 0;
    Seconds cost = 0;
  };
  std::vector<Typical> typical_;  // direct-mapped by output size
};

inline constexpr c10::DispatchKeySet kExotic = c10::DispatchKeySet(
    {c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr, c10::DispatchKey::Quantized, c10::DispatchKey::MkldnnCPU,
     c10::DispatchKey::NestedTensor, c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
     c10::DispatchKey::ZeroTensor, c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});

// Strided, dense, on the CPU, with a storage of its own or a view of one.
inline bool plain(const c10::TensorImpl* impl) {
  return !impl->key_set().has_any(kExotic) && impl->is_cpu() && impl->has_storage() && impl->unsafe_storage();
}

// Calls visit(argument index, tensor) for every defined tensor among the arguments.
template <typename Visit>
void for_each_tensor(const OpInfo& info, const torch::jit::Stack& stack, Visit visit) {
  const std::size_t first = stack.size() - info.arguments.size();
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    switch (info.arguments[i].kind) {
      case ArgumentInfo::Kind::tensor:
        if (value.isTensor() && value.toTensor().defined()) visit(i, value.toTensor());
        break;
      case ArgumentInfo::Kind::tensor_list:
        if (!value.isList()) break;
        for (const c10::IValue& element : value.toListRef()) {
          if (element.isTensor() && element.toTensor().defined()) visit(i, element.toTensor());
        }
        break;
      case ArgumentInfo::Kind::tensor_lists:
        for (const c10::IValue& list : value.toListRef()) {
          for (const c10::IValue& element : list.toListRef()) {
            if (element.isTensor() && element.toTensor().defined()) visit(i, element.toTensor());
          }
        }
        break;
      default: break;
    }
  }
}

template <typename Visit>
void for_each_result(const OpInfo& info, const torch::jit::Stack& stack, Visit visit) {
  const std::size_t first = stack.size() - info.returns;
  for (std::size_t i = 0; i < info.returns; ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor(), i, std::size_t{0});
    } else if (value.isTensorList()) {
      const auto list = value.toListRef();
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (list[k].toTensor().defined()) visit(list[k].toTensor(), i, k);
      }
    }
  }
}

}  // namespace coop
