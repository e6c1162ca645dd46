// One budget on a live PyTorch program: the engine's driver.
//
// Owns the arena's memory and ties engine storages to c10::StorageImpl objects. A managed
// StorageImpl's DataPtr has the engine's storage as its context and release_storage as its deleter,
// so the way from a tensor to its storage is two loads, and torch calls the deleter when it dies,
// evicted or not. While evicted its pointer is null and any access throws.
#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "tiers/mover.h"
#include "tiers/tier.h"
#include "torch/in_flight.h"
#include "torch/recipe.h"

namespace coop {

class Scope final : public Driver {
 public:
  explicit Scope(const Options& options);
  ~Scope() override;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // The one that is open now; null if none is.
  static Scope* active() { return active_.load(std::memory_order_acquire); }
  // Opens it on this thread; throws std::runtime_error if another is open.
  static void open(std::unique_ptr<Scope> scope);
  // Closes it. Tensors live on in ordinary memory. Returns how many storages were lost for lack of
  // room.
  static std::size_t close();

  bool contains(const void* address) const {
    return static_cast<std::size_t>(static_cast<const char*>(address) - base_) < size_.load(std::memory_order_relaxed);
  }
  void* address(const Block& block) const { return base_ + block.offset; }
  Bytes offset(const void* address) const { return static_cast<Bytes>(static_cast<const char*>(address) - base_); }

  // The engine's storage behind a torch storage. Bound on the way if it lies in the arena and is
  // not known yet; null for empty ones.
  Storage* storage_of(c10::StorageImpl* impl);
  // The same without binding or making anything.
  Storage* known_storage_of(c10::StorageImpl* impl);
  // The same for one whose bytes lie in the arena, or would if they were not evicted. Null for
  // others.
  Storage* storage_in_arena(c10::StorageImpl* impl);
  // Memory of a storage: in the arena or foreign.
  const void* data(const Storage& storage) const;
  // Others may write to its bytes without our knowledge.
  static bool shared_outside(const Storage& storage);
  // Copies the storage of a foreign tensor into the arena, unless its memory belongs to somebody
  // else. Returns the bytes moved.
  Bytes adopt(const at::Tensor& tensor);
  // A source with the present bytes of one that others may write to; the same one as long as the
  // bytes are the same.
  Storage* snapshot(Storage& storage);
  // Takes a pointer access outside of any op into account: the storage is resident and stays where
  // it is. `foreign_too`: others share the memory and may write to it, also if it lies outside the
  // arena.
  void expose(c10::StorageImpl* impl, bool foreign_too);

  // The torch storage has no memory any more; it had that of the storage. A program that empties
  // one usually fills it again with the same bytes: FSDP gathers a parameter before the forward
  // pass and once more before the backward pass.
  void emptied(c10::StorageImpl* impl, Storage& storage);
  // An op has written to these. If one was emptied before and has the same bytes again, it takes
  // the old one's place.
  void refilled(std::span<Storage* const> written) {
    if (any_emptied_) [[unlikely]]
      refilled_slow(written);
  }

  // An escaping pointer is noticed by the storage's materialiser. Kernels may take pointers: it is
  // off while they run.
  static void watch_pointer(c10::StorageImpl* impl);
  // Whether that makes sense: not if others may know its address anyway.
  static bool watched(const Storage& storage) { return storage.held && !storage.claims.exposed && !storage.borrowers; }
  static void ignore_pointer(c10::StorageImpl* impl);

  // The open scope, for a thread without the turn: it may be closed at any time, but is not deleted
  // meanwhile.
  class Use {
   public:
    Use() : scope_((uses_.fetch_add(1), active_.load())) {}
    ~Use() {
      if (uses_.fetch_sub(1) == 1 && drop_later_.load()) drop_all_that_are_done();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Scope* scope() const { return scope_; }

   private:
    Scope* const scope_;
  };

  // While one of these lives, the scope does, even closed.
  class Guest {
   public:
    explicit Guest(Scope* scope) : scope_(scope) { ++scope->guests_; }
    ~Guest() {
      --scope_->guests_;
      drop_if_done(scope_);
    }
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;

   private:
    Scope* scope_;
  };

  // So many more readers outside of operators (torch/held.h): the scope does not end before they
  // have.
  void readers_began(int more) { readers_ += more; }

  // Releases what must not be released under the engine's lock.
  void empty_trash();
  // The torch storage behind a held storage, for as long as it is handled under the engine's lock;
  // null: another thread is letting go of it. A storage owns a weak reference to its handle from
  // bind to let_go, so there is no moment at which the handle may not be asked.
  c10::StorageImpl* handle_of(const Storage& storage);

  // Driver
  Seconds replay(Op& op, Block* target, Block** produced) override;
  void detach(Storage& storage) override;
  void attach(Storage& storage) override;
  Seconds copy(Bytes to, Bytes from, Bytes bytes) override;
  void drop(Op& op) override;
  void drop(Storage& storage) override;
  bool evacuate(Storage& storage) override;
  void abandon(Storage& storage) override;
  std::uint64_t digest(Bytes offset, Bytes bytes) override;
  void spoil(Bytes offset, Bytes bytes) override;
  std::uint32_t begin_out(Bytes offset, Bytes bytes, Seconds now) override;
  std::uint32_t begin_in(std::uint32_t page, Bytes offset, Bytes bytes, Seconds now) override;
  void wait(std::uint32_t ticket, Seconds now) override;
  Transfer finish(std::uint32_t ticket, Seconds now) override;
  bool cancel(std::uint32_t ticket) override;
  void drop_page(std::uint32_t page) override;

  // Storages may leave for this tier. Before anything has.
  void swap_to(std::unique_ptr<Tier> tier) {
    mover_.reset();
    tier_ = std::move(tier);
    mover_ = std::make_unique<Mover>(*tier_);
  }

  Engine& engine() { return *engine_; }
  InFlight& in_flight() { return in_flight_; }

  // From now on: what each op has cost, in the order in which they ran.
  using OpTimes = std::vector<std::pair<std::string, Seconds>>;
  void time_ops() { op_times_ = std::make_unique<OpTimes>(); }
  OpTimes take_op_times() { return op_times_ ? std::exchange(*op_times_, {}) : OpTimes(); }
  void note_op(const std::string& name, Seconds cost) {
    if (op_times_) [[unlikely]]
      op_times_->emplace_back(name, cost);
  }

  // Whose memory is it? Any scope's, closed ones included.
  static Scope* owner_of(const void* address);
  // Deletes a closed scope if none of its blocks is in use.
  static void drop_if_done(Scope* scope);

  // Around a fork, in the turn of the thread that forks: the child finds no lock held, and no
  // transfer under way, by threads that it does not have.
  static void before_fork();
  static void after_fork();

 private:
  friend class Overdraft;
  static constexpr std::size_t kReserve = 4;  // address space, in arenas

  struct Foreign {
    Storage* storage = nullptr;
    c10::intrusive_ptr<c10::StorageImpl> keep;
  };

  static void drop_all_that_are_done();
  void refilled_slow(std::span<Storage* const> written);
  Seconds replay_here(Op& op, Block* target, Block** produced);

  static std::atomic<Scope*> active_;
  static std::atomic<int> uses_;         // see Use
  static std::atomic<bool> drop_later_;  // a scope could not be dropped, because of them

  char* base_ = nullptr;
  std::atomic<std::size_t> size_ = 0;  // any thread asks whose memory an address is
  std::size_t mapped_ = 0;
  std::size_t overdraft_ = 0;  // bytes behind the arena that are in use, for a moment
  bool closed_ = false;
  std::atomic<int> guests_ = 0;
  std::atomic<int> readers_ = 0;
  std::mutex maps_mutex_;
  std::unordered_map<const c10::StorageImpl*, Foreign> foreign_;
  // Foreign storages to which a pointer was taken. While the weak reference is here, no other has
  // this address.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> opened_;
  std::unordered_map<const Storage*, Storage*> snapshots_;  // bytes when last read, of what others may write to
  struct Emptied {
    Storage* storage = nullptr;
    c10::weak_intrusive_ptr<c10::StorageImpl> impl;
  };
  std::unordered_map<const c10::StorageImpl*, Emptied> emptied_;
  std::atomic<bool> any_emptied_ = false;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> trash_;
  InFlight in_flight_;
  std::unique_ptr<OpTimes> op_times_;
  Threads threads_;               // of the thread that opened it
  std::unique_ptr<Tier> tier_;    // outlives the engine
  std::unique_ptr<Mover> mover_;  // between the arena and the tier
  std::unique_ptr<Engine> engine_;
};

// Ticks of the cheapest clock, and how long one is.
std::uint64_t ticks();
Seconds seconds_per_tick();

}  // namespace coop
