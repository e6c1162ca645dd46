// The hook into PyTorch.
//
// A boxed fallback on DispatchKey::Fake, a key that PyTorch 2.13 reserves and does not use on ordinary tensors, sees every op
// below autograd and all modes, forward, backward and optimizer alike. Around each kernel it makes sure that the
// operands are resident, and afterwards records how to run the op again.
//
// The order of things around an op:
//   1. collect the operands' storages; leaves of autograd become sources
//   2. what the op overwrites is made safe to overwrite (rule 5)
//   3. operands are brought back and locked (rule 3)
//   4. arguments are written down, if the op is worth recording
//   5. the kernel runs, nested ops unseen; if there is no room, memory is packed, then emptied, and it runs once more
//   6. results become storages, and the op is recorded
#include "torch_hook.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <cstring>
#include <mutex>

#include "composite.h"
#include "out_of_budget.h"
#include "overdraft.h"
#include "scope.h"

namespace coop {
namespace {

thread_local bool in_op __attribute__((tls_model("initial-exec"))) = false;

// A thread is managed if its ops come here: what PyTorch hands on to other threads, keys among it, makes those managed too.
bool managed() { return in_op || c10::impl::raw_local_dispatch_key_set.included().has(c10::DispatchKey::Fake); }

// Ops inside of a kernel are not seen.
constexpr c10::DispatchKeySet kSeen({c10::DispatchKey::Fake, kCompositeKey});

// --- allocator -----------------------------------------------------------------------------------------------------------

c10::Allocator* system = nullptr;

class HookAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* address = bytes == 0 ? nullptr : take(bytes);
    return {address, address, &release_raw, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_raw; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void* take(std::size_t bytes) {
    const Scope::Use use;
    Scope* scope = use.scope();
    // Kernels split their work among threads that allocate too.
    if (!scope || !(managed() || at::in_parallel_region())) return system->raw_allocate(bytes);
    try {
      void* address = scope->address(*scope->engine().allocate(bytes));
      if (!in_op && managed()) scope->empty_trash();
      return address;
    } catch (const Shortage& shortage) {
      if (in_op || !managed()) throw;  // the fallback knows which op it is
      throw_out_of_budget(shortage, "an allocation outside of any operator");
    }
  }
};

// --- operands ------------------------------------------------------------------------------------------------------------

bool is_leaf_variable(const c10::TensorImpl* impl) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl->autograd_meta());
  return meta && meta->requires_grad_ && !meta->grad_fn_;
}

// Autograd is storing a gradient in its leaf, or adding to one on the way (between two nodes). Such a sum is committed:
// bringing it back would mean running most of the step again, term by term, and somebody will want it soon.
bool stores_gradient(const OpInfo& info) {
  if (!info.accumulates) return false;
  if (const auto node = torch::autograd::get_current_node()) {
    return dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
  }
  return info.kind == OpInfo::Kind::overwrite && torch::autograd::get_current_graph_task_id() != -1;
}

// A backward pass that nobody will differentiate. Its results are not recorded: somebody waits for each of them, and
// bringing one back would mean running most of the step again.
bool in_plain_backward() { return !c10::GradMode::is_enabled() && torch::autograd::get_current_graph_task_id() != -1; }

// What the op reads and writes. One for each thread, its memory used over and over.
struct Operands {
  std::vector<Storage*> storages;  // distinct, locked while the op runs
  std::vector<c10::StorageImpl*> impls;
  std::vector<Storage*> written;     // distinct
  std::vector<Storage*> statistics;  // of a training batch norm: written, but not part of its recipe
  Bytes largest = 0;
  bool exotic = false;
  bool shared = false;
  bool grows = false;    // writes into an empty tensor, which will get memory it has not now
  bool passing = false;  // reads a source that is no parameter: a gradient, a batch

  void clear() {
    storages.clear();
    impls.clear();
    written.clear();
    statistics.clear();
    largest = 0;
    exotic = shared = grows = passing = false;
  }

  void add(Scope& scope, const at::Tensor& tensor, std::vector<Storage*>* write) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (!plain(impl)) {
      exotic = exotic || !impl->is_meta();
      return;
    }
    c10::StorageImpl* owner = impl->unsafe_storage().unsafeGetStorageImpl();
    Storage* storage = scope.storage_of(owner);
    if (!storage) {
      grows = grows || write;
      return;
    }
    if (storage->slot >= storages.size() || storages[storage->slot] != storage) {
      storage->slot = static_cast<std::uint32_t>(storages.size());
      storages.push_back(storage);
      impls.push_back(owner);
      largest = std::max(largest, storage->bytes);
      shared = shared || Scope::shared_outside(*storage);
    }
    const bool leaf = is_leaf_variable(impl);
    if (storage->producer && leaf) scope.engine().commit(*storage);
    passing = passing || (!write && !leaf && storage->source() && storage->bytes > kByValueLimit);
    if (write && std::find(write->begin(), write->end(), storage) == write->end()) write->push_back(storage);
  }
};

// --- one op --------------------------------------------------------------------------------------------------------------

// What a call needs besides its arguments. One for each thread, its memory used over and over.
struct Workspace {
  Operands operands;
  std::vector<Storage*> edges;        // what the recorded op reads
  std::vector<std::int32_t> edge_of;  // for each operand: its edge, or a SpecialEdge
  std::vector<Storage*> snapshots;    // for each operand: the copy that is recorded in its place, or null
  std::vector<Storage*> outputs;
  std::vector<Storage*> made;  // all results of its own, recorded or not: a plan wants to know
  std::vector<ReturnPlace> places;
  std::vector<std::pair<std::size_t, c10::IValue>> saved;
  torch::jit::Stack late;  // arguments of an op that will be written down after it has run
  Draft draft;
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

class Call {
 public:
  Call(Scope& scope, OpInfo& info, c10::DispatchKeySet below, torch::jit::Stack& stack, Workspace& space)
      : operands_(space.operands),
        edges_(space.edges),
        edge_of_(space.edge_of),
        snapshots_(space.snapshots),
        outputs_(space.outputs),
        made_(space.made),
        places_(space.places),
        saved_(space.saved),
        late_(space.late),
        draft_(space.draft),
        scope_(scope),
        engine_(scope.engine()),
        info_(info),
        below_(below),
        stack_(stack) {}

  void run() {
    Overdraft::settle(scope_);
    operands_.clear();
    try {
      engine_.before_planned(info_.name);
      collect();
      if (operands_.statistics.empty()) {
        engine_.before_overwrite(operands_.written);
      } else {
        std::vector<Storage*> all = operands_.written;
        all.insert(all.end(), operands_.statistics.begin(), operands_.statistics.end());
        engine_.before_overwrite(all);
      }
      entering_ = true;
      enter();
    } catch (Shortage& shortage) {
      find_need(shortage);
      give_up();
      throw_out_of_budget(shortage, info_.name);
    } catch (const Lost&) {
      give_up();
      throw;
    }
    try {
      prepare();
      kernel();
      finish();
    } catch (...) {
      overwritten();  // whatever the kernel got done
      late_.clear();
      saved_.clear();
      forget_snapshots();
      leave();
      scope_.empty_trash();
      rethrow();
    }
    scope_.note_op(info_.name, cost_);
    engine_.ran(cost_);  // of a custom operator: nothing beyond the ops that it called
    engine_.after_planned(made_, operands_.written);
    scope_.empty_trash();
  }

 private:
  void collect() {
    operands_.clear();
    edges_.clear();
    snapshots_.clear();
    const bool trains = info_.batch_norm && batch_norm_trains();
    for_each_tensor(info_, stack_, [&](std::size_t i, const at::Tensor& tensor) {
      if (info_.shape_only) {
        if (!plain(tensor.unsafeGetTensorImpl())) operands_.exotic = true;
        return;
      }
      const bool statistics = info_.batch_norm && is_statistics(i);  // one that evaluates only reads them
      operands_.add(scope_, tensor,
                    statistics                   ? (trains ? &operands_.statistics : nullptr)
                    : info_.arguments[i].written ? &operands_.written
                                                 : nullptr);
    });
  }

  bool batch_norm_trains() const {
    if (info_.training_argument < 0) return true;
    const c10::IValue& training = stack_[stack_.size() - info_.arguments.size() + info_.training_argument];
    return training.isBool() && training.toBool();
  }
  bool is_statistics(std::size_t argument) const {
    return static_cast<int>(argument) == info_.statistics || static_cast<int>(argument) == info_.statistics + 1;
  }

  // The op does not run.
  void give_up() {
    for (Storage* storage : operands_.storages) engine_.reconsider(*storage);
    scope_.empty_trash();
  }
  void enter() {
    engine_.enter(operands_.storages);
    engine_.overwriting(operands_.written);
    engine_.overwriting(operands_.statistics);
    for (c10::StorageImpl* impl : operands_.impls) Scope::ignore_pointer(impl);
  }
  void leave() {
    for (std::size_t i = 0; i < operands_.impls.size(); ++i) {
      Storage* storage = operands_.storages[i];
      if (storage->held && !storage->exposed) Scope::watch_pointer(operands_.impls[i]);
    }
    engine_.leave(operands_.storages);
  }

  // Decides whether the op is worth recording and writes its arguments down.
  void prepare() {
    const Options& options = engine_.options();
    Storage* target = operands_.written.size() == 1 ? operands_.written[0] : nullptr;
    const bool backward = !options.record_backward && !engine_.planned_again() && in_plain_backward();
    record_ = options.evict && info_.replayable && info_.same_again.holds(stack_) && !backward &&
              !stores_gradient(info_) && info_.returns > 0 && !operands_.exotic && !operands_.grows &&
              (operands_.written.empty() || (target && may_be_renamed(*target) && !passed_twice())) &&
              !engine_.too_deep(operands_.storages);
    if (!options.in_place) {
      for (Storage* storage : operands_.written) {
        if (!has_to_be_copied(*storage)) continue;
        if (old_) engine_.reconsider(*std::exchange(old_, nullptr));
        copy_on_write(*storage);
        Scope::ignore_pointer(static_cast<c10::StorageImpl*>(storage->handle));  // the kernel will take it
      }
    }
    if (record_) {
      threads_ = Threads::of_openmp();
      if (operands_.shared && !take_snapshots()) {
        record_ = false;
      } else if (!target && operands_.largest <= options.tiny && !info_.random) {
        // The results are probably too small to be recorded: keep the arguments and see.
        late_.assign(stack_.end() - static_cast<std::ptrdiff_t>(info_.arguments.size()), stack_.end());
      } else {
        write_down(target, stack_);
      }
    }
    // What goes soon lies at the high end: gradients on their way, and what is cheap to bring back.
    engine_.expect(backward ? Side::high : info_.factory ? Side::low : engine_.side_of(info_.density));
  }

  // The tensor that is written to is another argument too. If the kernel gives it another shape, it changes there as well;
  // in a replay these would be two tensors.
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

  // A storage that is updated in place from something that passes by, as an optimizer's moments are from gradients,
  // would keep it and all that came before it: it becomes a source instead.
  bool may_be_renamed(const Storage& target) const {
    return target.producer && target.versions < engine_.options().max_versions && !operands_.passing;
  }

  // Operands that others may write to are recorded as copies of what they are now.
  bool take_snapshots() {
    for (Storage* storage : operands_.storages) {
      if (!scope_.data(*storage)) return false;  // it is lost, as the kernel will say
      if (Scope::shared_outside(*storage) && storage->bytes > kByValueLimit &&
          storage->bytes > engine_.options().budget / 16) {
        return false;
      }
    }
    snapshots_.resize(operands_.storages.size(), nullptr);
    for (std::size_t i = 0; i < operands_.storages.size(); ++i) {
      Storage* storage = operands_.storages[i];
      if (Scope::shared_outside(*storage) && storage->bytes > kByValueLimit) snapshots_[i] = scope_.snapshot(*storage);
    }
    return true;
  }
  void forget_snapshots() {
    for (Storage* storage : snapshots_) {
      if (storage) engine_.reconsider(*storage);
    }
    snapshots_.clear();
  }

  void write_down(Storage* target, const torch::jit::Stack& stack) {
    draft_.clear();
    edge_of_.assign(operands_.storages.size(), kUndefined);
    in_place_ = InPlace::no;
    if (target) {
      in_place_ = fills_all(target) ? InPlace::from_scratch : InPlace::on_old;
      if (in_place_ == InPlace::on_old) {
        edge_of_[target->slot] = 0;
        edges_.push_back(target);  // replaced by the old version once there is one
      } else {
        edge_of_[target->slot] = kTarget;
      }
    }
    const bool trains = info_.batch_norm && !operands_.statistics.empty();
    const std::size_t first = stack.size() - info_.arguments.size();
    for (std::size_t i = 0; i < info_.arguments.size(); ++i) {
      const c10::IValue& value = stack[first + i];
      switch (info_.arguments[i].kind) {
        case ArgumentInfo::Kind::tensor:
          if (value.isNone()) {
            draft_.none();
          } else if (!value.toTensor().defined() || (trains && is_statistics(i))) {
            draft_.undefined();
          } else {
            const Place place = place_of(value.toTensor());
            draft_.tensor(value.toTensor(), place.edge, place.value, place.bytes);
          }
          break;
        case ArgumentInfo::Kind::tensor_list: {
          if (value.isNone()) {
            draft_.none();
            break;
          }
          const auto list = value.toListRef();
          draft_.list(list.size(), !value.isTensorList());
          for (const c10::IValue& element : list) {
            if (!element.isTensor() || !element.toTensor().defined()) {
              draft_.no_element();
            } else {
              const Place place = place_of(element.toTensor());
              draft_.element(element.toTensor(), place.edge, place.value, place.bytes);
            }
          }
          break;
        }
        case ArgumentInfo::Kind::generator:
          draft_.plain(value.isGenerator() ? c10::IValue(value.toGenerator().clone()) : value);
          break;
        case ArgumentInfo::Kind::other: draft_.plain(value); break;
      }
    }
  }

  struct Place {
    std::int32_t edge;
    const void* value = nullptr;
    Bytes bytes = 0;
  };
  Place place_of(const at::Tensor& tensor) {
    if (info_.shape_only) return {kNoData};
    Storage* storage = scope_.known_storage_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (!storage) return {kNoData};  // empty
    std::int32_t& edge = edge_of_[storage->slot];
    if (edge == kUndefined) {
      if (storage->source() && storage->bytes <= kByValueLimit) {
        edge = kByValue;
      } else {
        edge = static_cast<std::int32_t>(edges_.size());
        Storage* snapshot = snapshots_.empty() ? nullptr : snapshots_[storage->slot];
        edges_.push_back(snapshot ? snapshot : storage);
      }
    }
    if (edge == kByValue) return {kByValue, scope_.data(*storage), storage->bytes};
    return {edge};
  }

  // In place, writes every byte of the storage, reads none of it.
  bool fills_all(Storage* target) const {
    if (!info_.fills) return false;
    const at::Tensor& self = stack_[stack_.size() - info_.arguments.size()].toTensor();
    if (self.nbytes() != target->bytes || !self.is_non_overlapping_and_dense()) {
      return false;
    }
    bool read = false;
    for_each_tensor(info_, stack_, [&](std::size_t i, const at::Tensor& tensor) {
      if (i > 0 && tensor.has_storage() &&
          tensor.storage().unsafeGetStorageImpl() == self.storage().unsafeGetStorageImpl()) {
        read = true;
      }
    });
    return !read;
  }

  // What the kernel takes or changes although it fails, so that it can be run once more.
  struct Before {
    std::size_t height = 0;  // of the stack
    std::vector<std::pair<at::Generator, RandomState>> random;
    std::vector<std::pair<Storage*, std::string>> statistics;  // of a batch norm: small
  };

  bool repeatable() const {
    constexpr Bytes kSmall = 1 << 20;
    Bytes statistics = 0;
    for (const Storage* storage : operands_.statistics) statistics += storage->bytes;
    return info_.replayable && operands_.written.empty() && statistics <= kSmall && !operands_.grows &&
           engine_.options().rescue;
  }

  Before remember() {
    Before before{stack_.size(), {}, {}};
    saved_.clear();
    const std::size_t first = before.height - info_.arguments.size();
    for (std::size_t i = first; i < before.height; ++i) {
      if (info_.arguments[i - first].taken && !stack_[i].isNone()) saved_.emplace_back(i, stack_[i]);
      if (stack_[i].isGenerator()) remember(stack_[i].toGenerator(), before);
    }
    if (info_.random) remember(at::detail::getDefaultCPUGenerator(), before);
    for (Storage* storage : operands_.statistics) {
      before.statistics.emplace_back(storage,
                                     std::string(static_cast<const char*>(scope_.data(*storage)), storage->bytes));
    }
    return before;
  }
  static void remember(const at::Generator& generator, Before& before) {
    if (generator.device().is_cpu())
      before.random.emplace_back(generator, RandomState::of(*generator.get<at::CPUGeneratorImpl>()));
  }
  // The arguments are on the stack as before, and nothing else has changed.
  void undo(const Before& before) {
    for (auto& [at, value] : saved_) stack_[at] = value;
    for (const auto& [generator, state] : before.random) state.restore(*generator.get<at::CPUGeneratorImpl>());
    for (const auto& [storage, bytes] : before.statistics) {
      std::memcpy(const_cast<void*>(scope_.data(*storage)), bytes.data(), bytes.size());
    }
  }

  void kernel() {
    const bool random = info_.random && record_;
    if (random) random_ = std::make_unique<RandomState>(RandomState::of(RandomState::global()));
    const bool repeatable = this->repeatable();
    const Before before = repeatable ? remember() : Before{};
    for (int tries = 0;; ++tries) {
      try {
        timed();
        break;
      } catch (Shortage& shortage) {
        if (!repeatable || stack_.size() != before.height) {
          // It cannot be run again, and its operands cannot be moved: room between them has to do.
          shortage.enough = std::max(shortage.enough, engine_.enough_for(operands_.storages)) +
                            operands_.storages.size() * shortage.needed;
          throw;
        }
        undo(before);
        if (tries == 2) {
          count_operands(shortage);
          measure(shortage, before);
          throw;
        }
        rescue(tries == 0 ? &Engine::pack : &Engine::compact);
        if (tries == 1) engine_.expect(Side::low);  // side by side, as when its need is measured
      }
    }
    saved_.clear();
  }

  // --- what would have been enough ---

  // The operands are entered. They are packed, and the op runs beyond the budget: the highest byte that it reaches is what
  // it needs.
  void measure(Shortage& shortage, const Before& before) {
    const Bytes operands = engine_.enough_for(operands_.storages);
    shortage.enough = std::max(shortage.enough, operands);
    const Overdraft overdraft(scope_, shortage.needed);
    if (overdraft.granted()) run_beyond(shortage, before, operands);
  }
  void run_beyond(Shortage& shortage, const Before& before, Bytes operands) {
    try {
      rescue(&Engine::compact);
      timed();
      shortage.whole = true;
      const Bytes enough = std::max(operands, engine_.top());
      if (enough > shortage.budget) shortage.enough = enough;
    } catch (...) {  // no room even so, or an error that only shows now: at least what was known before
    }
    stack_.resize(std::min(stack_.size(), before.height - info_.arguments.size()));  // results go
    stack_.resize(before.height);
    undo(before);
  }

  void count_operands(Shortage& shortage) const {
    shortage.operands = operands_.storages.size();
    for (const Storage* storage : operands_.storages) shortage.read += storage->bytes;
  }

  // It did not come so far as to run.
  void find_need(Shortage& shortage) {
    count_operands(shortage);
    if (!engine_.options().rescue) return;
    Bytes operands = engine_.enough_for(operands_.storages);
    if (!entering_ || !repeatable()) {
      constexpr Bytes kLittle = 4096;  // for numbers that a kernel makes of its arguments
      for (const Storage* storage : operands_.written) {
        if (storage->producer && !engine_.options().in_place) operands += storage->bytes;
      }
      if (!entering_) {  // what depends on the operands has come back and stays
        for (const Storage* storage : operands_.storages) operands += storage->producer ? storage->bytes : 0;
      }
      shortage.enough = std::max(shortage.enough, operands) + kLittle;
      return;
    }
    shortage.enough = std::max(shortage.enough, operands);
    const Overdraft overdraft(scope_, shortage.needed);
    if (!overdraft.granted()) return;
    try {
      engine_.enter(operands_.storages);
    } catch (const Shortage&) {
      return;
    } catch (const Lost&) {
      return;
    }
    for (c10::StorageImpl* impl : operands_.impls) Scope::ignore_pointer(impl);
    run_beyond(shortage, remember(), operands);
    saved_.clear();
    leave();
  }

  static bool has_to_be_copied(const Storage& storage) {
    return storage.producer && storage.locks <= 1;  // an op around this one may know its address
  }

  void copy_on_write(Storage& storage) {
    for (int tries = 0;; ++tries) {
      try {
        old_ = engine_.copy_on_write(storage);
        return;
      } catch (Shortage& shortage) {
        if (tries == 2 || !engine_.options().rescue) {
          Bytes copies = 0;  // this one and those that come after it
          for (const Storage* written : operands_.written) copies += has_to_be_copied(*written) ? written->bytes : 0;
          shortage.enough = std::max(shortage.enough, engine_.enough_for(operands_.storages) + copies);
          throw;
        }
        rescue(tries == 0 ? &Engine::pack : &Engine::compact);
      }
    }
  }

  // No kernel runs now: operands stay, but may be moved.
  void rescue(void (Engine::*make_room)()) {
    for (Storage* storage : operands_.storages) engine_.pin(*storage);
    engine_.leave(operands_.storages);
    (engine_.*make_room)();
    engine_.enter(operands_.storages);
    for (Storage* storage : operands_.storages) engine_.unpin(*storage);
    for (c10::StorageImpl* impl : operands_.impls) Scope::ignore_pointer(impl);
  }

  void timed() {
    if (!info_.replayable) {
      // A custom operator may call others, which are seen as always, and wait for other threads.
      const CompositeCall call(scope_, /*points_to_all=*/true);
      const Interlude interlude;
      info_.op.redispatchBoxed(below_, &stack_);
      return;
    }
    const InsideOp inside;
    const Seconds room = engine_.room_seconds();
    const std::uint64_t start = ticks();
    {
      const c10::impl::ExcludeDispatchKeyGuard unseen(kSeen);
      info_.op.redispatchBoxed(below_, &stack_);
    }
    cost_ = static_cast<double>(ticks() - start) * seconds_per_tick() - (engine_.room_seconds() - room);
    if (cost_ < 0) cost_ = 0;
  }

  // What was recomputable and has been overwritten is a source now, or the output of this op if it is recorded.
  void overwritten() {
    for (std::vector<Storage*>* list : {&operands_.written, &operands_.statistics}) {
      engine_.overwriting(*list);  // ops inside this one may have committed them
      for (Storage* storage : *list) {
        if (!storage->producer) continue;
        Storage* old = engine_.split(*storage);
        engine_.reconsider(*old);
      }
    }
    if (old_) engine_.reconsider(*old_);
    old_ = nullptr;
  }

  void finish() {
    Storage* target = operands_.written.size() == 1 ? operands_.written[0] : nullptr;
    // A kernel may have given an out= argument a new storage.
    if (target && !target->held && !target->foreign) record_ = false;
    // The first kernel of a thread that asks for the number of threads sets it: with how many this one ran is not known.
    if (record_ && Threads::of_openmp() != threads_) record_ = false;
    std::vector<ReturnPlace>& places = places_;
    places.clear();
    outputs_.clear();
    made_.clear();
    Bytes most = 0, all = 0;
    if (record_ && target) {
      outputs_.push_back(target);
      places.push_back({});
      most = all = target->bytes;
    }
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
      if (info_.unset) storage->unset = true;
      if (static_cast<int>(index) == info_.ragged_result || tensor.nbytes() < storage->bytes) storage->ragged = true;
      if (operands_.exotic) engine_.expose(*storage);  // may be part of something we cannot see into
      all += storage->bytes;
      if (composite && composite->points_to(tensor)) {
        composite->hold(*storage);
      } else if (composite && info_.unset) {
        composite->hold_empty(*storage);
      }
      if (storage->bytes <= engine_.options().tiny) return;  // not worth evicting
      outputs_.push_back(storage);
      places.push_back({static_cast<std::uint16_t>(index), static_cast<std::uint16_t>(element)});
      most = std::max(most, storage->bytes);
    });
    if (composite) {
      for (Storage* storage : operands_.written) composite->filled(*storage);
    }
    if (exotic_result) {
      for (std::size_t i = 0; i < operands_.storages.size(); ++i) {
        if (!operands_.storages[i]->foreign) engine_.expose(*operands_.storages[i]);
      }
      record_ = false;
    }
    const Seconds cost = all > 0 ? info_.typical_cost(all, cost_) : cost_;
    if (all > engine_.options().tiny) {
      const double density = cost / static_cast<double>(all);
      info_.density = info_.density > 0 ? 0.9 * info_.density + 0.1 * density : density;
    }
    if (record_ && most > 0) {
      if (!late_.empty()) write_down(nullptr, late_);
      if (target) {
        if (!old_) old_ = engine_.split(*target);
        if (in_place_ == InPlace::on_old) edges_[0] = old_;
      }
      for (Storage* storage : operands_.statistics) {
        if (storage->producer) engine_.reconsider(*engine_.split(*storage));
      }
      engine_.record(new Recipe(info_, draft_, places, std::move(random_), Settings::now(info_.multiplies)), cost,
                     edges_, outputs_, in_place_);
      if (old_) engine_.reconsider(*old_);
      old_ = nullptr;
    } else {
      overwritten();
    }
    late_.clear();
    forget_snapshots();
    leave();
  }

  [[noreturn]] void rethrow() {
    try {
      throw;
    } catch (const Shortage& shortage) {
      throw_out_of_budget(shortage, info_.name);
    }
  }

  Operands& operands_;
  std::vector<Storage*>& edges_;
  std::vector<std::int32_t>& edge_of_;
  std::vector<Storage*>& snapshots_;
  std::vector<Storage*>& outputs_;
  std::vector<Storage*>& made_;
  std::vector<ReturnPlace>& places_;
  std::vector<std::pair<std::size_t, c10::IValue>>& saved_;
  torch::jit::Stack& late_;
  Draft& draft_;
  Scope& scope_;
  Engine& engine_;
  OpInfo& info_;
  const c10::DispatchKeySet below_;
  torch::jit::Stack& stack_;
  std::unique_ptr<RandomState> random_;
  Storage* old_ = nullptr;
  Seconds cost_ = 0;
  int threads_ = 1;  // OpenMP's, before the op
  InPlace in_place_ = InPlace::no;
  bool record_ = false;
  bool entering_ = false;  // all that comes before is done
};

// --- the fallback --------------------------------------------------------------------------------------------------------

void redispatch_unseen(const OpInfo& info, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kSeen);
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

// resize_, set_: the storage may be exchanged for another. It is committed first, so that nothing has to be renamed.
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
  try {
    for (Storage* storage : storages) engine.commit(*storage);
    engine.enter(storages);
  } catch (const Shortage& shortage) {
    throw_out_of_budget(shortage, info.name);
  }
  for (Storage* storage : storages) {
    if (storage->held) Scope::ignore_pointer(static_cast<c10::StorageImpl*>(storage->handle));
  }
  const auto leave = [&] {
    for (Storage* storage : storages) {
      if (storage->held && !storage->exposed) Scope::watch_pointer(static_cast<c10::StorageImpl*>(storage->handle));
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
  if (in_op || info.kind == OpInfo::Kind::pass || !Scope::active()) {
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
    Call(*scope, info, below, *stack, workspace()).run();
  } else {
    Workspace own;  // ops that it calls use the thread's
    const Scope::Guest guest(scope);
    Call(*scope, info, below, *stack, own).run();
  }
}

// Two storages that share their memory until one of them is written to: the copy is made at once.
void lazy_clone(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const c10::OperatorHandle clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  stack->emplace_back();  // the memory format
  clone.callBoxed(stack);
}

}  // namespace

// Managed threads take turns, one op at a time: a replay borrows the global random state.
static std::recursive_mutex turns;

Turn::Turn() {
  if (!turns.try_lock()) lock_without_gil(turns);
}
Turn::~Turn() { turns.unlock(); }
Interlude::Interlude() { turns.unlock(); }
Interlude::~Interlude() {
  if (!turns.try_lock()) lock_without_gil(turns);
}

InsideOp::InsideOp() : before_(in_op) { in_op = true; }
InsideOp::~InsideOp() { in_op = before_; }

c10::Allocator& system_allocator() { return *system; }

void release_raw(void* address) {
  if (!address) return;
  if (Scope* scope = Scope::owner_of(address)) {
    scope->engine().free(scope->offset(address));
    Scope::drop_if_done(scope);
  } else {
    system->raw_deallocate(address);
  }
}

void release_storage(void* context) {
  auto* storage = static_cast<Storage*>(context);
  Engine* engine = storage->engine;
  auto* impl = static_cast<c10::StorageImpl*>(storage->handle);
  engine->let_go(*storage);
  c10::raw::weak_intrusive_ptr::decref(impl);
  Scope::drop_if_done(static_cast<Scope*>(&engine->driver()));
}

void install_allocator() {
  static HookAllocator hook;
  if (system) return;
  system = c10::GetAllocator(c10::kCPU);
  pthread_atfork(
      [] {
        if (!turns.try_lock()) lock_without_gil(turns);
        Scope::before_fork();
      },
      [] {
        Scope::after_fork();
        turns.unlock();
      },
      [] {
        Scope::after_fork();
        new (&turns) std::recursive_mutex;  // the old one is owned by a thread of the parent
      });
  c10::SetAllocator(c10::kCPU, &hook, 255);
}

void manage_this_thread(bool on) {
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, on);
  c10::impl::tls_set_dispatch_key_included(kCompositeKey, on);
}

bool this_thread_is_managed() { return managed(); }

bool inside_op() { return in_op; }

}  // namespace coop

TORCH_LIBRARY_IMPL(_, Fake, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&coop::fallback>()); }
TORCH_LIBRARY_IMPL(aten, Fake, library) {
  library.impl("_lazy_clone", torch::CppFunction::makeFromBoxedFunction<&coop::lazy_clone>());
}
