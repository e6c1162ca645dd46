// The driver: memory of the arena, eviction and restoration of torch storages, replay of torch ops.
#include "torch/scope.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ApproximateClock.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "engine/digest.h"
#include "torch/allocator.h"
#include "torch/out_of_budget.h"
#include "torch/overdraft.h"
#include "torch/turn.h"

namespace coop {

namespace {

constexpr const char* kLostMessage =
    "coop: this tensor is lost: it, or what it would be made from, had been swapped out and did not come back as it "
    "was. "
    "Tip: go on from the last checkpoint, with another place to swap to.";

constexpr const char* kNoRoomMessage =
    "coop: this tensor was evicted when its budget's scope ended, and there was no room to bring it back. Tip: drop "
    "tensors "
    "you no longer need before the scope ends, or allow more memory.";

std::mutex scopes_mutex;
std::vector<Scope*>& scopes() {
  static auto& all = *new std::vector<Scope*>;
  return all;
}

}  // namespace

std::atomic<Scope*> Scope::active_{nullptr};
std::atomic<int> Scope::uses_{0};
std::atomic<bool> Scope::drop_later_{false};

std::uint64_t ticks() { return static_cast<std::uint64_t>(c10::getApproximateTime()); }

Seconds seconds_per_tick() {
  static const Seconds length = [] {
    using SteadyClock = std::chrono::steady_clock;
    const auto from = SteadyClock::now();
    const std::uint64_t first = ticks();
    while (SteadyClock::now() - from < std::chrono::milliseconds(5)) {
    }
    const std::uint64_t last = ticks();
    return std::chrono::duration<double>(SteadyClock::now() - from).count() / static_cast<double>(last - first);
  }();
  return length;
}

Scope::Scope(const Options& options) {
  seconds_per_tick();
  size_ = options.budget / options.alignment * options.alignment;
  mapped_ = (size_ + 4095) / 4096 * 4096;
  // Address space behind the arena, out of bounds until the scope ends: see close.
  void* memory = mmap(nullptr, kReserve * mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (mprotect(memory, mapped_, PROT_READ | PROT_WRITE) != 0) {
    munmap(memory, kReserve * mapped_);
    throw std::bad_alloc();
  }
  madvise(memory, mapped_, MADV_HUGEPAGE);
  base_ = static_cast<char*>(memory);
  engine_ = std::make_unique<Engine>(options, *this);
  const std::lock_guard<std::mutex> lock(scopes_mutex);
  scopes().push_back(this);
}

Scope::~Scope() {
  {
    const std::lock_guard<std::mutex> lock(scopes_mutex);
    std::erase(scopes(), this);  // a scope that was never opened
  }
  engine_.reset();
  if (mover_ && mover_->alone()) static_cast<void>(mover_.release());
  mover_.reset();
  munmap(base_, kReserve * mapped_);
}

void Scope::open(std::unique_ptr<Scope> scope) {
  Scope* none = nullptr;
  scope->threads_ = Threads::now();
  Threads::set_here();  // this thread's counts are the process's, asked for or not
  if (!active_.compare_exchange_strong(none, scope.get())) throw std::runtime_error("a budget is already in force");
  scope.release();  // owned by the list of scopes from here on
}

std::size_t Scope::close() {
  Scope* scope = active_.load();
  const Guest guest(scope);  // as soon as it is closed, others may find that nothing is left of it
  while (scope->readers_) {  // on other threads, such as one that writes a checkpoint
    const TurnPause pause;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  Overdraft::end_if_possible(*scope);
  scope->in_flight_.strand(*scope->engine_);
  // What is evicted comes back, in room beyond the budget if need be.
  const bool more = mprotect(scope->base_, kReserve * scope->mapped_, PROT_READ | PROT_WRITE) == 0;
  const Bytes budget = scope->size_.exchange(more ? kReserve * scope->mapped_ : scope->size_.load());
  const std::size_t lost = scope->engine_->retire(scope->size_ - budget);
  active_.store(nullptr);  // before anybody counts the uses
  scope->foreign_.clear();
  scope->emptied_.clear();
  scope->empty_trash();
  scope->closed_ = true;
  // What is left in the arena is exposed or raw. The rest of its pages go back to the system.
  for (const Block* block = scope->engine_->arena().first(); block; block = block->next) {
    if (block->state != Block::State::free) continue;
    const Bytes from = (block->offset + 4095) / 4096 * 4096, to = block->end() / 4096 * 4096;
    if (to > from) madvise(scope->base_ + from, to - from, MADV_DONTNEED);
  }
  scope->engine_->throw_if_broken();
  return lost;
}

void Scope::drop_if_done(Scope* scope) {
  {
    const std::lock_guard<std::mutex> lock(scopes_mutex);
    const auto found = std::find(scopes().begin(), scopes().end(), scope);
    if (found == scopes().end() || !scope->closed_ || scope->guests_ || !scope->engine_->empty()) return;
    if (uses_.load()) {  // a new Use does not find a closed scope
      drop_later_ = true;
      return;
    }
    scopes().erase(found);  // the thread that erases it deletes it
  }
  delete scope;
}

void Scope::drop_all_that_are_done() {
  std::vector<Scope*> all;
  {
    const std::lock_guard<std::mutex> lock(scopes_mutex);
    drop_later_ = false;
    all = scopes();
  }
  for (Scope* scope : all) drop_if_done(scope);
}

// OpenMP's threads are not in the child, which would wait for them when it brings a tensor back.
// They end here; parent and child start new ones when they need them.
static void end_openmp_threads() {
  constexpr int kSoftly = 1;
  static const auto pause = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  if (pause) pause(kSoftly);
}

void Scope::before_fork() {
  scopes_mutex.lock();
  if (Scope* scope = active()) {
    scope->engine_->freeze();  // its transfers use the tier
    scope->maps_mutex_.lock();
    end_openmp_threads();
  }
  Tier::lock().lock();
}

void Scope::after_fork() {
  Tier::lock().unlock();
  if (Scope* scope = active()) {
    scope->maps_mutex_.unlock();
    scope->engine_->thaw();
  }
  scopes_mutex.unlock();
}

Scope* Scope::owner_of(const void* address) {
  if (const Use use; use.scope() && use.scope()->contains(address)) return use.scope();
  const std::lock_guard<std::mutex> lock(scopes_mutex);
  for (Scope* scope : scopes()) {
    if (scope->contains(address)) return scope;
  }
  return nullptr;
}

void Scope::empty_trash() {
  decltype(trash_) trash;  // emptied after the lock is open
  const std::lock_guard<std::mutex> lock(maps_mutex_);
  trash.swap(trash_);
}

// --- Driver ------------------------------------------------------------------------------------------------------------

Seconds Scope::copy(Bytes to, Bytes from, Bytes bytes) {
  const auto start = std::chrono::steady_clock::now();
  std::memmove(base_ + to, base_ + from, bytes);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Scope::drop(Op& op) { delete static_cast<Recipe*>(op.recipe); }

void Scope::drop(Storage& storage) {
  if (!storage.tracked) return;
  const std::lock_guard<std::mutex> lock(maps_mutex_);
  std::erase_if(snapshots_, [&](const auto& item) { return item.first == &storage || item.second == &storage; });
  std::erase_if(emptied_, [&](const auto& item) { return item.second.storage == &storage; });
  if (!storage.foreign || !storage.handle) return;
  const auto found = foreign_.find(static_cast<c10::StorageImpl*>(storage.handle));
  if (found == foreign_.end() || found->second.storage != &storage) return;
  trash_.push_back(std::move(found->second.keep));
  foreign_.erase(found);
}

bool Scope::evacuate(Storage& storage) {
  c10::StorageImpl* impl = handle_of(storage);
  if (!impl) return false;
  void* to = system_allocator().raw_allocate(storage.bytes);
  std::memcpy(to, address(*storage.block), storage.bytes);
  const Bytes from = (storage.block->offset + 4095) / 4096 * 4096, end = storage.block->end() / 4096 * 4096;
  if (end > from) madvise(base_ + from, end - from, MADV_DONTNEED);  // memory in use does not grow meanwhile
  impl->_mutable_data_ptr_no_checks().release_context();
  impl->clear_materializer();
  impl->set_data_ptr_noswap(c10::DataPtr(to, to, &release_raw, c10::kCPU));
  c10::raw::weak_intrusive_ptr::decref(impl);
  storage.tracked = true;
  const std::lock_guard<std::mutex> lock(maps_mutex_);
  foreign_[impl] = {&storage, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl)};
  return true;
}

void Scope::abandon(Storage& storage) {
  c10::StorageImpl* impl = handle_of(storage);
  if (!impl) return;
  impl->_mutable_data_ptr_no_checks().release_context();
  impl->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::kCPU));
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(storage.copy.lost ? kLostMessage : kNoRoomMessage);
  c10::raw::weak_intrusive_ptr::decref(impl);
}

std::uint64_t Scope::digest(Bytes offset, Bytes bytes) { return digest_of(base_ + offset, bytes); }

void Scope::spoil(Bytes offset, Bytes bytes) { std::memset(base_ + offset, 0xDB, bytes); }

std::uint32_t Scope::begin_out(Bytes offset, Bytes bytes, Seconds) {
  return mover_ ? mover_->begin_out(base_ + offset, bytes) : 0;
}

std::uint32_t Scope::begin_in(std::uint32_t page, Bytes offset, Bytes bytes, Seconds) {
  return mover_->begin_in(page, base_ + offset, bytes);
}

void Scope::wait(std::uint32_t ticket, Seconds) { mover_->wait(ticket); }

Transfer Scope::finish(std::uint32_t ticket, Seconds) { return mover_->finish(ticket); }

bool Scope::cancel(std::uint32_t ticket) { return mover_->cancel(ticket); }

void Scope::drop_page(std::uint32_t page) { tier_->drop(page); }

Seconds Scope::replay(Op& op, Block* target, Block** produced) {
  if (!Threads::may_be_unset() || Threads::now() == threads_) return replay_here(op, target, produced);
  Seconds cost = 0;
  std::exception_ptr error;
  std::thread([&] {
    try {
      cost = replay_here(op, target, produced);
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
  return cost;
}

Seconds Scope::replay_here(Op& op, Block* target, Block** produced) {
  const auto& recipe = *static_cast<const Recipe*>(op.recipe);
  std::vector<Recipe::Memory> inputs(op.inputs_count);
  for (std::uint32_t i = 0; i < op.inputs_count; ++i) {
    const Storage& storage = *op.inputs()[i].storage;
    if (i == 0 && op.in_place == InPlace::on_old) {
      inputs[0] = {address(*target), storage.bytes};
    } else {
      inputs[i] = {const_cast<void*>(data(storage)), storage.bytes};
    }
  }
  torch::jit::Stack stack;
  recipe.push_arguments(inputs, target ? Recipe::Memory{address(*target), target->bytes} : Recipe::Memory{}, stack);

  // No mode, no autograd, no autocast: the op ran below all of them, and so does its replay (rule
  // 6).
  const c10::impl::ForceDispatchKeyGuard guard(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                               c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                                   c10::autocast_dispatch_keyset |
                                                   c10::DispatchKeySet(c10::DispatchKey::Fake));

  const SettingsThen settings(recipe.settings);
  struct Restore {
    std::optional<RandomState> random;
    ~Restore() {
      if (random) random->restore(RandomState::global());
    }
  } restore;
  if (recipe.random) {
    restore.random = RandomState::of(RandomState::global());
    recipe.random->restore(RandomState::global());
  }

  const InsideOp inside;
  const Seconds room = engine_->room_seconds();
  const std::uint64_t start = ticks();
  recipe.info.op.callBoxed(stack);
  const Seconds cost = static_cast<double>(ticks() - start) * seconds_per_tick() - (engine_->room_seconds() - room);

  for (std::size_t i = 0; i < recipe.places.size(); ++i) {
    if (target && i == 0) continue;
    const c10::IValue& result = stack[recipe.places[i].index];
    const at::Tensor tensor =
        result.isTensor() ? result.toTensor() : result.toListRef()[recipe.places[i].element].toTensor();
    c10::DataPtr& pointer = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    if (pointer.get_deleter() != &release_raw || !contains(pointer.get())) continue;
    produced[i] = engine_->raw_block(offset(pointer.get()));
    pointer.release_context();  // the block is the engine's now
  }
  return std::max(cost, 0.0);
}

}  // namespace coop
