// Seeing composite calls, and holding what they may point to.
#include "torch/composite.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "torch/out_of_budget.h"
#include "torch/turn.h"

namespace coop {
namespace {

thread_local CompositeCall* innermost __attribute__((tls_model("initial-exec"))) = nullptr;

// Of PyTorch's own, these point to other tensors too: to matrices that they pack, or to what they
// read without an operator.
bool may_point_to_all(const std::string& name) {
  return name.rfind("aten::", 0) != 0 || name.rfind("aten::fbgemm_", 0) == 0 ||
         name.rfind("aten::quantized_", 0) == 0 || name == "aten::max_pool1d";
}

// Returns a view of its only tensor, or that tensor itself, and has no use for its bytes: reshape,
// flatten, to.
bool only_views(const OpInfo& info, const c10::FunctionSchema& schema) {
  int tensors = 0;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    const ArgumentInfo::Kind kind = info.arguments[i].kind;
    if (kind == ArgumentInfo::Kind::tensor_list || kind == ArgumentInfo::Kind::tensor_lists) return false;
    if (kind != ArgumentInfo::Kind::tensor) continue;
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (++tensors > 1 || !alias || alias->isWrite()) return false;
  }
  return tensors == 1;
}

void composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCompositeKey);
  OpInfo& info = OpInfo::of(op);
  std::optional<CompositeCall> held;
  Scope* scope = nullptr;
  {
    const Scope::Use use;
    scope = inside_op() ? nullptr : use.scope();
    if (scope) held.emplace(*scope, info.points_to_all);
  }
  if (!held) {
    op.redispatchBoxed(below, stack);
    return;
  }
  CompositeCall& call = *held;
  for_each_tensor(info, *stack, [&](std::size_t, const at::Tensor& tensor) {
    if (!plain(tensor.unsafeGetTensorImpl()) || !call.points_to(tensor)) return;
    const Turn turn;
    if (scope != Scope::active()) return;  // it has been closed while we waited
    Storage* storage = scope->known_storage_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (!storage || storage->foreign) return;
    try {
      call.hold(*storage);
    } catch (const Shortage& shortage) {
      throw_out_of_budget(shortage, info.name);
    }
  });
  op.redispatchBoxed(below, stack);
}

}  // namespace

CompositeCall::CompositeCall(Scope& scope, bool points_to_all)
    : outer_(innermost),
      guest_(&scope),
      engine_(scope.engine()),
      points_to_all_(points_to_all || (outer_ && outer_->points_to_all_)) {
  innermost = this;
}

CompositeCall::~CompositeCall() {
  innermost = outer_;
  if (held_.empty() && empty_.empty()) return;
  const Turn turn;
  engine_.leave(held_);
  engine_.leave(empty_);
}

CompositeCall* CompositeCall::current() { return innermost; }

void CompositeCall::hold(Storage& storage) { hold_in(held_, storage); }
void CompositeCall::hold_empty(Storage& storage) { hold_in(empty_, storage); }

void CompositeCall::hold_in(std::vector<Storage*>& list, Storage& storage) {
  Storage* const one = &storage;
  list.reserve(list.size() + 1);
  engine_.hold(std::span(&one, 1));
  list.push_back(&storage);
}

void CompositeCall::filled(Storage& storage) {
  for (CompositeCall* call = this; call; call = call->outer_) {
    const auto found = std::find(call->empty_.begin(), call->empty_.end(), &storage);
    if (found == call->empty_.end()) continue;
    call->empty_.erase(found);
    Storage* const one = &storage;
    engine_.leave(std::span(&one, 1));
  }
}

void watch_composite_calls() {
  static std::mutex mutex;
  static auto& seen = *new std::set<const void*>;
  static auto& registrations = *new std::vector<c10::RegistrationHandleRAII>;
  const std::lock_guard<std::mutex> lock(mutex);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name :
       dispatcher.getAllOpNamesForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !seen.insert(&op->schema()).second) continue;
    OpInfo& info = OpInfo::of(*op);
    if (info.kind != OpInfo::Kind::pass || only_views(info, op->schema())) continue;
    info.points_to_all = may_point_to_all(op->schema().name());
    registrations.push_back(dispatcher.registerImpl(name, kCompositeKey,
                                                    c10::KernelFunction::makeFromBoxedFunction<&composite>(),
                                                    std::nullopt, nullptr, "coop: composite calls"));
  }
}

}  // namespace coop

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
