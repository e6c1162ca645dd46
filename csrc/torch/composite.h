// Calls whose code may hold a pointer to a tensor while it calls operators.
//
// PyTorch makes many operators of others, in plain C++ (CompositeImplicitAutograd). Some of that
// code takes a pointer to lengths, batch sizes or indices, calls operators, and reads on:
// pad_packed_sequence, packed RNNs, tensor_split, ctc_loss. Taking a pointer only to read is not
// noticed. So whatever such code may point to is resident and stays in place until its outermost
// call returns: in PyTorch's own code, all tensors of integers that the call is given, and all that
// operators make for it. Custom operators may point to anything: for them, the same holds for
// tensors of every kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "torch/op_info.h"
#include "torch/scope.h"

namespace coop {

// The key at which composite calls are seen: above autograd, and used by nobody else.
constexpr auto kCompositeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

class CompositeCall {
 public:
  // `points_to_all`: tensors of every kind are held.
  CompositeCall(Scope& scope, bool points_to_all);
  ~CompositeCall();
  CompositeCall(const CompositeCall&) = delete;
  CompositeCall& operator=(const CompositeCall&) = delete;

  // The one that is under way on this thread, the innermost; null: none is.
  static CompositeCall* current();

  // Its code may point to this tensor, which has this storage.
  bool points_to(const at::Tensor& tensor) const {
    return points_to_all_ || c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  }
  // In its turn. Brings the storage back if it has left.
  void hold(Storage& storage);
  // The same for one that is empty: its code may be about to fill it.
  void hold_empty(Storage& storage);
  // An operator has: if this or an outer call holds it for being empty, it does no longer.
  void filled(Storage& storage);

 private:
  void hold_in(std::vector<Storage*>& list, Storage& storage);

  CompositeCall* const outer_;
  const Scope::Guest guest_;
  Engine& engine_;
  const bool points_to_all_;
  const c10::impl::ExcludeDispatchKeyGuard inner_calls_are_unseen_{kCompositeKey};
  std::vector<Storage*> held_, empty_;
};

// From now on, calls of all composite operators that are known are seen on managed threads. May be
// called again, when there are more of them.
void watch_composite_calls();

}  // namespace coop
