// The hook into PyTorch's dispatcher.
//
// A boxed fallback on DispatchKey::Fake, a key that PyTorch 2.13 reserves and does not use on
// ordinary tensors, sees every op below autograd and all modes, forward, backward and optimizer
// alike. hooked_op.h says what happens around an op; views and what exchanges a tensor's storage
// are handled here.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "torch/allocator.h"
#include "torch/hooked_op.h"
#include "torch/in_flight.h"
#include "torch/out_of_budget.h"
#include "torch/out_of_step.h"
#include "torch/scope.h"
#include "torch/turn.h"

namespace coop {
namespace {

void redispatch_unseen(const OpInfo& info, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(seen_keys());
  info.op.redispatchBoxed(below, &stack);
}

// A result whose memory is not known to be anybody's yet becomes a source.
void bind_results(const OpInfo& info, const torch::jit::Stack& stack) {
  for_each_result(info, stack, [&](const at::Tensor& tensor, std::size_t, std::size_t) {
    if (!plain(tensor.unsafeGetTensorImpl())) return;
    c10::StorageImpl* impl = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const c10::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
    if (pointer.get_deleter() != &release_raw) return;
    const Turn turn;
    if (Scope* scope = Scope::active(); scope && scope->contains(pointer.get())) scope->storage_of(impl);
  });
}

void commit_result(const OpInfo& info, const c10::IValue& result) {
  if (!result.isTensor() || !plain(result.toTensor().unsafeGetTensorImpl())) return;
  const Turn turn;
  Scope* scope = Scope::active();
  if (!scope) return;
  Storage* storage =
      scope->storage_of(result.toTensor().unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  if (!storage || storage->foreign) return;
  try {
    scope->engine().commit(*storage);
  } catch (const Shortage& shortage) {
    throw_out_of_budget(shortage, info.name);
  }
}

// resize_, set_: the storage may be exchanged for another. It is committed first, so that nothing
// has to be renamed.
void run_reshape(Scope& scope, const OpInfo& info, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  std::vector<Storage*> storages;
  for_each_tensor(info, stack, [&](std::size_t, const at::Tensor& tensor) {
    if (!plain(tensor.unsafeGetTensorImpl())) return;
    c10::StorageImpl* impl = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    Storage* storage = scope.storage_of(impl);
    if (!storage || std::find(storages.begin(), storages.end(), storage) != storages.end()) return;
    storages.push_back(storage);
  });
  Engine& engine = scope.engine();
  const auto give_up = [&] {
    for (Storage* storage : storages) engine.reconsider(*storage);
    scope.empty_trash();
  };
  try {
    for (Storage* storage : storages) engine.commit(*storage);
    engine.enter(storages);
  } catch (const Shortage& shortage) {
    give_up();
    throw_out_of_budget(shortage, info.name);
  } catch (...) {
    give_up();
    throw;
  }
  for (Storage* storage : storages) {
    if (storage->held) Scope::ignore_pointer(static_cast<c10::StorageImpl*>(storage->handle));
  }
  const auto leave = [&] {
    for (Storage* storage : storages) {
      if (Scope::watched(*storage)) Scope::watch_pointer(static_cast<c10::StorageImpl*>(storage->handle));
    }
    engine.leave(storages);
    scope.empty_trash();
  };
  try {
    redispatch_unseen(info, below, stack);
  } catch (const Shortage& shortage) {
    leave();
    throw_out_of_budget(shortage, info.name);
  } catch (...) {
    leave();
    throw;
  }
  leave();
  engine.ran(0);
  bind_results(info, stack);
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Fake);
  OpInfo& info = OpInfo::of(op);
  if (info.collective && Scope::active() && !inside_op() && !InsideCollective::here()) {
    OutOfStep::before_collective(info.name);
  }
  if (inside_op() || info.kind == OpInfo::Kind::pass || !Scope::active()) {
    op.redispatchBoxed(below, stack);
    return;
  }
  if (info.kind == OpInfo::Kind::view) {
    redispatch_unseen(info, below, *stack);
    bind_results(info, *stack);
    if (stores_gradient(info)) commit_result(info, stack->back());
    return;
  }
  const Turn turn;
  Scope* scope = Scope::active();  // it may have been closed while we waited
  if (!scope) {
    op.redispatchBoxed(below, stack);
  } else if (info.kind == OpInfo::Kind::reshape) {
    run_reshape(*scope, info, below, *stack);
  } else if (info.replayable) {
    run_op(*scope, info, below, *stack);
  } else {  // it may call others, and even close the scope
    const Scope::Guest guest(scope);
    run_op(*scope, info, below, *stack);
  }
}

// Two storages that share their memory until one of them is written to: the copy is made at once.
void lazy_clone(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const c10::OperatorHandle clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  stack->emplace_back();  // the memory format
  clone.callBoxed(stack);
}

}  // namespace
}  // namespace coop

TORCH_LIBRARY_IMPL(_, Fake, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&coop::fallback>()); }
TORCH_LIBRARY_IMPL(aten, Fake, library) {
  library.impl("_lazy_clone", torch::CppFunction::makeFromBoxedFunction<&coop::lazy_clone>());
}
