// The steps of one op, in order. One class, so that it reads from top to bottom; it is long for
// that reason.
#include "torch/hooked_op.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>

#include "engine/op_call.h"
#include "torch/allocator.h"
#include "torch/argument_recorder.h"
#include "torch/buckets.h"
#include "torch/composite.h"
#include "torch/in_flight.h"
#include "torch/out_of_budget.h"
#include "torch/overdraft.h"
#include "torch/turn.h"
#include "torch/undo.h"

namespace coop {

bool stores_gradient(const OpInfo& info) {
  if (!info.accumulates) return false;
  if (const auto node = torch::autograd::get_current_node()) {
    return dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
  }
  return info.kind == OpInfo::Kind::overwrite && torch::autograd::get_current_graph_task_id() != -1;
}

namespace {

bool is_leaf_variable(const c10::TensorImpl* impl) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl->autograd_meta());
  return meta && meta->requires_grad_ && !meta->grad_fn_;
}

// A backward pass that nobody will differentiate. Its results are not recorded: somebody waits for
// each of them, and bringing one back would mean running most of the step again.
bool in_plain_backward() { return !c10::GradMode::is_enabled() && torch::autograd::get_current_graph_task_id() != -1; }

// What an op needs besides its arguments. One for each thread, its memory used over and over.
struct Workspace {
  OpCall call;
  ArgumentRecorder recorder;
  Undo undo;
  std::vector<c10::StorageImpl*> impls;       // of the operands
  std::vector<Storage*> recomputable_leaves;  // of the operands: leaves are sources
  std::vector<Storage*> outputs;
  std::vector<Storage*> made;  // all results of its own, recorded or not, for a plan
  std::vector<ReturnPlace> places;
  torch::jit::Stack late;  // arguments of an op that will be written down after it has run
};

Workspace& workspace() {
  // The pointer is found without a call, the object only once for each thread.
  static thread_local Workspace* here __attribute__((tls_model("initial-exec"))) = nullptr;
  if (!here) [[unlikely]] {
    static thread_local std::unique_ptr<Workspace> owner;
    owner = std::make_unique<Workspace>();
    here = owner.get();
  }
  return *here;
}

class HookedOp {
 public:
  HookedOp(Scope& scope, OpInfo& info, c10::DispatchKeySet below, torch::jit::Stack& stack, Workspace& space)
      : scope_(scope),
        engine_(scope.engine()),
        info_(info),
        below_(below),
        stack_(stack),
        call_(space.call),
        recorder_(space.recorder),
        undo_(space.undo),
        impls_(space.impls),
        recomputable_leaves_(space.recomputable_leaves),
        outputs_(space.outputs),
        made_(space.made),
        places_(space.places),
        late_(space.late) {}

  void run() {
    Overdraft::end_if_possible(scope_);
    scope_.in_flight().end_completed(engine_);
    impls_.clear();
    recomputable_leaves_.clear();
    recorder_.begin(scope_, info_);
    try {
      call_.begin(engine_, info_.name, !InsideCollective::here());  // a plan knows nothing of what a backend makes
      collect();
      call_.enter();
      ignore_pointers();
    } catch (Shortage& shortage) {
      if (!find_need(shortage)) call_.give_up();
      scope_.empty_trash();
      throw_out_of_budget(shortage, info_.name);
    } catch (const Lost&) {
      call_.give_up();
      scope_.empty_trash();
      throw;
    }
    try {
      prepare();
      kernel();
      record_results();
    } catch (...) {
      call_.overwritten();  // whatever the kernel got done
      late_.clear();
      undo_.forget();
      recorder_.forget_snapshots();
      leave();
      scope_.empty_trash();
      rethrow();
    }
    scope_.note_op(info_.name, cost_);
    call_.ran(cost_, made_);  // of a custom operator: nothing beyond the ops that it called
    scope_.empty_trash();
  }

 private:
  // --- operands

  void collect() {
    const bool trains = info_.batch_norm && batch_norm_trains();
    for_each_tensor(info_, stack_, [&](std::size_t i, const at::Tensor& tensor) {
      if (info_.shape_only) {
        if (!plain(tensor.unsafeGetTensorImpl())) exotic_ = true;
        return;
      }
      const bool statistics = info_.batch_norm && info_.is_statistics(i);  // one that evaluates only reads them
      add(tensor, statistics                   ? (trains ? OpCall::Access::update : OpCall::Access::read)
                  : info_.arguments[i].written ? OpCall::Access::write
                                               : OpCall::Access::read);
    });
    // Only now: a number among the arguments that is not known yet would be a wall in the arena.
    for (Storage* storage : recomputable_leaves_) engine_.commit(*storage);
  }
  void add(const at::Tensor& tensor, OpCall::Access access) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (!plain(impl)) {
      exotic_ = exotic_ || !impl->is_meta();
      return;
    }
    c10::StorageImpl* owner = impl->unsafe_storage().unsafeGetStorageImpl();
    Storage* storage = scope_.storage_of(owner);
    if (!storage) {
      grows_ = grows_ || access != OpCall::Access::read;
      return;
    }
    const bool leaf = is_leaf_variable(impl);
    if (storage->producer && leaf) recomputable_leaves_.push_back(storage);
    if (!call_.add(*storage, access, leaf)) return;
    impls_.push_back(owner);
    largest_ = std::max(largest_, storage->bytes);
    shared_ = shared_ || Scope::shared_outside(*storage);
  }
  bool batch_norm_trains() const {
    if (info_.training_argument < 0) return true;
    const c10::IValue& training = stack_[stack_.size() - info_.arguments.size() + info_.training_argument];
    return training.isBool() && training.toBool();
  }

  // Kernels may take pointers: that is watched before and after.
  void ignore_pointers() {
    for (c10::StorageImpl* impl : impls_) Scope::ignore_pointer(impl);
  }
  void leave() {
    for (std::size_t i = 0; i < impls_.size(); ++i) {
      const Storage* storage = call_.operands()[i];
      if (Scope::watched(*storage)) Scope::watch_pointer(impls_[i]);
    }
    call_.leave();
  }

  // --- before the kernel

  // Decides whether the op is worth recording and writes its arguments down.
  void prepare() {
    const Options& options = engine_.options();
    Storage* target = call_.target();
    const bool backward = !options.record_backward && !engine_.planned_again() && in_plain_backward();
    record_ = info_.replayable && info_.same_again.holds(stack_) && !backward && !stores_gradient(info_) &&
              info_.returns > 0 && !exotic_ && !grows_ && call_.recordable() && !(target && passed_twice()) &&
              !InsideCollective::here() && !Buckets::collecting();
    call_.copy_written([](const Storage& storage) {  // the kernel will take it
      Scope::ignore_pointer(static_cast<c10::StorageImpl*>(storage.handle));
    });
    if (record_) {
      threads_ = Threads::of_openmp();
      if (shared_ && !recorder_.take_snapshots(call_)) {
        record_ = false;
      } else if (!target && largest_ <= options.tiny && !info_.random) {
        // The results are probably too small to be recorded: keep the arguments and see.
        late_.assign(stack_.end() - static_cast<std::ptrdiff_t>(info_.arguments.size()), stack_.end());
      } else {
        recorder_.write_down(call_, target, trains(), stack_);
      }
    }
    // Short-lived results go to the high end: gradients inside a backward pass, and what is cheap
    // to bring back.
    engine_.expect(backward ? Side::high : info_.factory ? Side::low : engine_.side_of(info_.density));
  }
  bool trains() const { return info_.batch_norm && !call_.updated().empty(); }

  // The tensor that is written to is another argument too. If the kernel gives it another shape, it
  // changes there as well; in a replay these would be two tensors.
  bool passed_twice() const {
    const c10::TensorImpl* written = nullptr;
    for_each_tensor(info_, stack_, [&](std::size_t i, const at::Tensor& tensor) {
      if (info_.arguments[i].written) written = tensor.unsafeGetTensorImpl();
    });
    int times = 0;
    for_each_tensor(info_, stack_, [&](std::size_t, const at::Tensor& tensor) {
      if (tensor.unsafeGetTensorImpl() == written) ++times;
    });
    return times > 1;
  }

  // --- the kernel

  bool repeatable() const {
    constexpr Bytes kSmall = 1 << 20;
    Bytes statistics = 0;
    for (const Storage* storage : call_.updated()) statistics += storage->bytes;
    return info_.replayable && call_.written().empty() && statistics <= kSmall && !grows_ && engine_.options().rescue;
  }

  void kernel() {
    if (info_.random && record_) random_ = std::make_unique<RandomState>(RandomState::of(RandomState::global()));
    const bool repeatable = this->repeatable();
    if (repeatable) undo_.remember(scope_, info_, stack_, call_.updated());
    const auto undo = [&] {
      scope_.in_flight().wait(engine_);
      if (!repeatable || !undo_.possible(stack_)) return false;
      undo_.restore(scope_, stack_);
      return true;
    };
    const auto failed = [&](Shortage& shortage, bool undone) {
      if (undone) {
        count_operands(shortage);
        measure(shortage);
      } else {
        // It cannot be run again, and its operands cannot be moved: room between them has to do.
        shortage.enough =
            std::max(shortage.enough, engine_.enough_for(call_.operands())) + call_.operands().size() * shortage.needed;
      }
    };
    call_.run(
        [&] {
          ignore_pointers();
          timed();
        },
        undo, failed);
    undo_.forget();
  }

  void timed() {
    if (!info_.replayable) {
      // A custom operator may call others, which are seen as always, and wait for other threads.
      const CompositeCall composite(scope_, /*points_to_all=*/true);
      if (info_.collective) {
        make_room_for_lists();
        call_.overwritten();  // now: other threads may write before this one goes on
        {
          const InsideCollective inside;
          const TurnPause pause;
          info_.op.redispatchBoxed(below_, &stack_);
        }
        scope_.in_flight().add(engine_, info_, stack_, call_.operands(), call_.written());
        return;
      }
      const TurnPause pause;
      info_.op.redispatchBoxed(below_, &stack_);
      return;
    }
    const InsideOp inside;
    const Seconds room = engine_.room_seconds();
    const std::uint64_t start = ticks();
    {
      const c10::impl::ExcludeDispatchKeyGuard unseen(seen_keys());
      info_.op.redispatchBoxed(below_, &stack_);
    }
    cost_ = static_cast<double>(ticks() - start) * seconds_per_tick() - (engine_.room_seconds() - room);
    if (cost_ < 0) cost_ = 0;
  }

  // A backend copies lists of tensors to flat ones and back, and cannot be asked to try again. So
  // there is room for two copies before it begins, while the operands can still be moved.
  void make_room_for_lists() {
    if (call_.operands().size() < 2 || !engine_.options().rescue) return;
    std::vector<Bytes> bytes(info_.arguments.size(), 0);
    for_each_tensor(info_, stack_, [&](std::size_t i, const at::Tensor& tensor) { bytes[i] += tensor.nbytes(); });
    const Bytes copies = 2 * *std::max_element(bytes.begin(), bytes.end());
    for (const auto make_room : {&Engine::pack, &Engine::compact}) {
      if (engine_.largest_run() >= copies) return;
      call_.rescue(make_room);
      ignore_pointers();
    }
  }

  // --- what would have been enough

  // The operands are entered. They are packed, and the op runs beyond the budget: the highest byte
  // that it reaches is what it needs.
  void measure(Shortage& shortage) {
    const Bytes operands = engine_.enough_for(call_.operands());
    shortage.enough = std::max(shortage.enough, operands);
    const Overdraft overdraft(scope_, shortage.needed);
    if (overdraft.granted()) run_beyond(shortage, operands);
  }
  void run_beyond(Shortage& shortage, Bytes operands) {
    try {
      call_.rescue(&Engine::compact);
      ignore_pointers();
      timed();
      shortage.whole = true;
      const Bytes enough = std::max(operands, engine_.enough_beyond(call_.operands()));
      if (enough > shortage.budget) shortage.enough = enough;
    } catch (...) {  // no room even so, or an error that only shows now: at least what was known before
    }
    undo_.drop_results(info_, stack_);
    undo_.restore(scope_, stack_);
  }

  void count_operands(Shortage& shortage) const {
    shortage.operands = call_.operands().size();
    for (const Storage* storage : call_.operands()) shortage.read += storage->bytes;
  }

  // It did not come so far as to run. True: its operands have been entered for that, and left
  // again; they may be gone.
  bool find_need(Shortage& shortage) {
    count_operands(shortage);
    if (!engine_.options().rescue) return false;
    Bytes operands = engine_.enough_for(call_.operands());
    if (!call_.entering() || !repeatable()) {
      constexpr Bytes kLittle = 4096;  // for numbers that a kernel makes of its arguments
      for (const Storage* storage : call_.written()) {
        if (storage->producer && !engine_.options().in_place) operands += storage->bytes;
      }
      if (!call_.entering()) {  // what depends on the operands has come back and stays
        for (const Storage* storage : call_.operands()) operands += storage->producer ? storage->bytes : 0;
      }
      shortage.enough = std::max(shortage.enough, operands) + kLittle;
      return false;
    }
    shortage.enough = std::max(shortage.enough, operands);
    const Overdraft overdraft(scope_, shortage.needed);
    if (!overdraft.granted()) return false;
    try {
      engine_.enter(call_.operands());
    } catch (const Shortage&) {
      return false;
    } catch (const Lost&) {
      return false;
    }
    ignore_pointers();
    undo_.remember(scope_, info_, stack_, call_.updated());
    run_beyond(shortage, operands);
    undo_.forget();
    leave();
    return true;
  }

  // --- after the kernel

  void record_results() {
    Storage* target = call_.target();
    // A kernel may have given an out= argument a new storage.
    if (target && !target->held && !target->foreign) record_ = false;
    // The first kernel of a thread that asks for the number of threads sets it: with how many this
    // one ran is not known.
    if (record_ && Threads::of_openmp() != threads_) {
      Threads::set_here();
      record_ = false;
    }
    outputs_.clear();
    made_.clear();
    places_.clear();
    if (record_ && target) {
      outputs_.push_back(target);
      places_.push_back({});
    }
    const Bytes all = bind_results(record_ && target ? target->bytes : 0);
    const Seconds cost = all > 0 ? info_.typical_cost(all, cost_) : cost_;
    if (all > engine_.options().tiny) {
      const double density = cost / static_cast<double>(all);
      info_.density = info_.density > 0 ? 0.9 * info_.density + 0.1 * density : density;
    }
    if (record_ && !outputs_.empty()) {
      if (!late_.empty()) recorder_.write_down(call_, nullptr, trains(), late_);
      const Settings settings = Settings::now(info_.multiplies);
      auto* recipe = new Recipe(info_, recorder_.draft(), places_, std::move(random_), settings);
      call_.record(recipe, cost, recorder_.edges(), outputs_, recorder_.in_place());
    } else {
      call_.overwritten();
    }
    late_.clear();
    recorder_.forget_snapshots();
    scope_.refilled(call_.written());
    leave();
  }

  // Results become storages. Returns their bytes plus `all`.
  Bytes bind_results(Bytes all) {
    bool exotic_result = false;
    CompositeCall* const composite = CompositeCall::current();
    for_each_result(info_, stack_, [&](const at::Tensor& tensor, std::size_t index, std::size_t element) {
      if (!plain(tensor.unsafeGetTensorImpl())) {
        exotic_result = exotic_result || !tensor.is_meta();
        return;
      }
      c10::StorageImpl* impl = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      if (impl->_mutable_data_ptr_no_checks().get_deleter() != &release_raw) return;
      Storage* storage = scope_.storage_of(impl);
      if (!storage || storage->foreign) return;
      if (engine_.following()) made_.push_back(storage);
      if (Buckets* buckets = Buckets::collecting()) buckets->add(impl);
      if (info_.unset || static_cast<int>(index) == info_.ragged_result) storage->unset = true;
      if (tensor.nbytes() < storage->bytes) storage->ragged = true;
      // May be part of something we cannot see into; or a backend's thread may point to it.
      if (exotic_ || InsideCollective::here()) engine_.expose(*storage);
      all += storage->bytes;
      if (composite && composite->points_to(tensor)) {
        composite->hold(*storage);
      } else if (composite && info_.unset) {
        composite->hold_empty(*storage);
      }
      if (storage->bytes <= engine_.options().tiny) return;  // not worth evicting
      outputs_.push_back(storage);
      places_.push_back({static_cast<std::uint16_t>(index), static_cast<std::uint16_t>(element)});
    });
    if (composite) {
      for (Storage* storage : call_.written()) composite->filled(*storage);
    }
    if (exotic_result) {
      for (Storage* storage : call_.operands()) {
        if (!storage->foreign) engine_.expose(*storage);
      }
      record_ = false;
    }
    return all;
  }

  [[noreturn]] void rethrow() {
    try {
      throw;
    } catch (const Shortage& shortage) {
      throw_out_of_budget(shortage, info_.name);
    }
  }

  Scope& scope_;
  Engine& engine_;
  OpInfo& info_;
  const c10::DispatchKeySet below_;
  torch::jit::Stack& stack_;
  OpCall& call_;
  ArgumentRecorder& recorder_;
  Undo& undo_;
  std::vector<c10::StorageImpl*>& impls_;
  std::vector<Storage*>& recomputable_leaves_;
  std::vector<Storage*>& outputs_;
  std::vector<Storage*>& made_;
  std::vector<ReturnPlace>& places_;
  torch::jit::Stack& late_;
  std::unique_ptr<RandomState> random_;
  Bytes largest_ = 0;    // of the operands
  bool exotic_ = false;  // an operand is not a plain strided CPU tensor
  bool shared_ = false;  // others may write to one
  bool grows_ = false;   // writes into an empty tensor, which will get memory it has not now
  bool record_ = false;
  int threads_ = 1;  // OpenMP's, before the op
  Seconds cost_ = 0;
};

}  // namespace

void run_op(Scope& scope, OpInfo& info, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  if (info.replayable) {
    HookedOp(scope, info, below, stack, workspace()).run();
  } else {
    Workspace own;  // ops that it calls use the thread's
    HookedOp(scope, info, below, stack, own).run();
  }
}

}  // namespace coop
