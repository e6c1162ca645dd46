// The engine: lineage + arena + policy, for one budget.
//
// A driver (the torch hook, or a trace player) runs a program op by op:
//
//     enter(inputs)                       every input is resident and locked
//       allocate(bytes) / free(offset)    from inside the kernel, on any thread
//     bind(...) / record(...)             outputs become storages, the op becomes lineage
//     leave(inputs)
//
// allocate, free and let_go may be called from any thread; the rest from the thread that runs the program. The lock
// covers bookkeeping only and is never held while a kernel runs.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "arena.h"
#include "classes.h"
#include "events.h"
#include "follow.h"
#include "history.h"
#include "lineage.h"
#include "orphans.h"
#include "policy.h"
#include "schedule.h"
#include "spin_lock.h"
#include "trails.h"
#include "types.h"

namespace coop {

// How a transfer went.
struct Transfer {
  bool done = false;       // if not, the rest says nothing
  std::uint32_t page = 0;  // that was written, or read; 0: it could not be, or is not what it was
  Seconds seconds = 0;     // it took
  Seconds waited = 0;      // for it, by the program
};

// What the engine asks of whoever runs the program.
class Driver {
 public:
  virtual ~Driver() = default;
  // Runs the op again and returns what it cost. Inputs are resident and locked. Each output's raw block goes to
  // `produced`, null where it has none. An in-place op works on `target`, which holds the bytes of its first input.
  virtual Seconds replay(Op& op, Block* target, Block** produced) = 0;
  // The bytes of a held storage are about to leave.
  virtual void detach(Storage& storage) = 0;
  // The bytes of a held storage are at its block's offset from now on.
  virtual void attach(Storage& storage) = 0;
  // Copies inside the arena, and returns the time it took; the ranges may overlap.
  virtual Seconds copy(Bytes to, Bytes from, Bytes bytes) = 0;
  // A record or a storage is gone: release what belongs to it. Called under the engine's lock.
  virtual void drop(Op& op) = 0;
  virtual void drop(Storage& storage) = 0;
  // Moves the bytes of a held storage out of the arena, for good. False: another thread is letting go of it.
  virtual bool evacuate(Storage& storage) = 0;
  // A held storage will never be brought back: reading it is an error from now on.
  virtual void abandon(Storage& storage) = 0;
  // Begins to write bytes of the arena to the tier outside, or to bring a page of it back, beside the program. Returns a
  // ticket, from 1 on; 0: there is no tier.
  virtual std::uint32_t begin_out(Bytes /*offset*/, Bytes /*bytes*/, Seconds /*now*/) { return 0; }
  virtual std::uint32_t begin_in(std::uint32_t /*page*/, Bytes /*offset*/, Bytes /*bytes*/, Seconds /*now*/) {
    return 0;
  }
  // How that went, once. Unless this is to wait, it may not be done. Called under the engine's lock.
  virtual Transfer finish(std::uint32_t /*ticket*/, bool /*wait*/, Seconds /*now*/) { return {}; }
  // True: it had not begun, and will not.
  virtual bool cancel(std::uint32_t /*ticket*/) { return false; }
  virtual void drop_page(std::uint32_t /*page*/) {}
  // A digest of bytes in the arena, for checks of rule 4.
  virtual std::uint64_t digest(Bytes offset, Bytes bytes) = 0;
  // Nobody may read these bytes of the arena any more: at the highest level of checks they are overwritten.
  virtual void spoil(Bytes /*offset*/, Bytes /*bytes*/) {}
};

// Bytes that left did not come back, and cannot be made again. The program can go on without them.
struct Lost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// No room. The program can go on after catching it (rule 8).
struct Shortage : std::exception {
  Bytes needed = 0;   // in one piece
  Bytes largest = 0;  // the largest piece that could be freed
  Bytes budget = 0;
  Bytes locked = 0;   // operands of the running op
  Bytes scratch = 0;  // raw blocks: unfinished outputs and kernels' scratch
  Bytes pinned = 0;   // by the user, or waiting for a recomputation
  Bytes sources = 0;  // cannot be recomputed
  Bytes exposed = 0;  // a pointer to them is known outside
  Bytes enough = 0;   // a budget that would have served
  Bytes kept = 0;     // sources that are resident now
  Bytes working = 0;  // the most that one op has needed so far, beyond sources
  Bytes read = 0;     // operands of the op, all of them
  std::size_t operands = 0;
  bool swaps = false;       // sources may leave with their bytes
  bool whole = false;       // `enough` is for all that the op does; else for as far as it has come, at least
  bool in_circles = false;  // there would be room for each storage in turn, but not for what is needed together
  const char* what() const noexcept override { return "no room in the arena"; }
};

struct Stats {
  Bytes budget = 0, in_use = 0, peak = 0, cached = 0, free = 0, largest_free = 0;
  Bytes sources = 0, floor = 0;  // floor: most ever needed at once by one op and, unless they swap, sources
  std::uint64_t allocations = 0, evictions = 0, rematerialisations = 0, replays = 0, moves = 0, commits = 0;
  std::uint64_t searches = 0, ops = 0, recorded_ops = 0, storages = 0;
  std::uint64_t records = 0;  // that there are now
  std::uint64_t looks = 0;    // at records, between ops and when storages die
  std::uint64_t exact_costs = 0, union_find_costs = 0;
  std::uint64_t swaps_out = 0, swaps_in = 0;
  Bytes swapped_out = 0, swapped_in = 0;
  std::uint64_t prefetch_hits = 0, prefetch_misses = 0;  // storages that came back: before they were needed, or when
  std::uint64_t planned_steps = 0, planned_ops = 0, plan_losses = 0;
  Bytes evicted_bytes = 0, moved_bytes = 0;
  Seconds op_seconds = 0, recompute_seconds = 0, search_seconds = 0, move_seconds = 0;
  Seconds transfer_seconds = 0, waited_seconds = 0;  // waited: by the program, for transfers
  Seconds hidden_seconds = 0;                        // of transfers, that it did not wait for
  double fragmentation = 0;
};

class Engine {
 public:
  Engine(const Options& options, Driver& driver);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- from inside kernels -------------------------------------------------------------------------------------------
  Block* allocate(Bytes bytes);
  void free(Bytes offset);
  // The raw block at this offset, null if there is none.
  Block* raw_block(Bytes offset) const;
  // Time spent making room so far: not part of any op's cost.
  Seconds room_seconds() const { return room_seconds_.load(std::memory_order_relaxed); }

  // --- around an op --------------------------------------------------------------------------------------------------
  // Where the outputs of the op that runs next should go.
  void expect(Side side) { side_.store(side, std::memory_order_relaxed); }
  Side side_of(double density) const { return options_.partition ? classes_.side(density) : Side::low; }
  // Brings every input back, in place and locked until leave. Rule 3.
  void enter(std::span<Storage* const> inputs);
  void leave(std::span<Storage* const> inputs);
  // The same for what is not an operand, but may be pointed to.
  void hold(std::span<Storage* const> storages);
  // These operands, which are entered, are about to be overwritten: what is outside of them is not their bytes any more.
  void overwriting(std::span<Storage* const> written);
  // Of an op that ran, recorded or not.
  void ran(Seconds cost);
  // A budget in which these can be brought back, whatever has left before: what cannot leave, and a simple schedule.
  Bytes enough_for(std::span<Storage* const> inputs) const;
  // For an op that has failed, to see what it takes: so many bytes behind the arena may be used, from the low end upwards,
  // and what it gets done is dropped. Rule 1 does not hold meanwhile. `compact` begins the measuring anew.
  void overdraw(Bytes bytes);
  Bytes top() const { return top_; }  // the highest byte that was in use since
  // False: somebody else lies there, and has to be waited for.
  bool end_overdraft();

  // --- storages ------------------------------------------------------------------------------------------------------
  // The raw block at this offset becomes a storage, attached to its handle: a source, until an op is recorded that makes it.
  Storage* bind(Bytes offset, Bytes bytes, void* handle);
  // A storage outside the arena. It lives while ops read it.
  Storage* bind_foreign(Bytes bytes, void* handle);
  // Nobody outside refers to it any more.
  void let_go(Storage& storage);
  // A storage that nobody holds and no recorded op reads is forgotten: a foreign or hidden one, or an old version.
  void reconsider(Storage& storage);

  // --- lineage -------------------------------------------------------------------------------------------------------
  // The op can be run again. Takes ownership of the recipe.
  void record(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
              InPlace in_place = InPlace::no);
  // Whether the lineage behind an op that reads these would be longer than is good for anybody.
  bool too_deep(std::span<Storage* const> inputs) const;
  // To be called before an op overwrites these, before it is entered. Rule 5.
  void before_overwrite(std::span<Storage* const> storages);
  // Without recomputable in-place: the storage moves to a copy, and the old version stays behind and is returned.
  Storage* copy_on_write(Storage& storage);
  // A recomputable storage has been overwritten. Returns the old version: evicted unless copied, it keeps the recipe
  // and the consumers. The storage itself is a source until a record tells how it was made.
  Storage* split(Storage& storage);
  // Cuts the lineage: resident, and a source from now on.
  void commit(Storage& storage);
  void materialise(Storage& storage);
  void pin(Storage& storage);
  void unpin(Storage& storage);
  // By the program: ends at the latest when it lets go of the storage.
  void pin_held(Storage& storage);
  void unpin_held(Storage& storage);
  // A pointer escapes: resident, committed, and never moved again while it lives. What was made from it is committed too.
  void expose(Storage& storage);
  // A source that only the lineage refers to.
  Storage* bind_hidden(Bytes offset, Bytes bytes);

  // --- a plan --------------------------------------------------------------------------------------------------------
  // From now on, while the program does what was planned, the plan says what leaves and comes back.
  void follow(std::shared_ptr<const Planned> plan);
  // The driver is about to run an op, and has run it. No plan: nothing happens.
  void before_planned(std::string_view op) {
    if (follower_) [[unlikely]]
      before_planned_slow(op);
  }
  void after_planned(std::span<Storage* const> made, std::span<Storage* const> written) {
    if (follower_) [[unlikely]]
      after_planned_slow(made, written);
  }
  bool following() const { return follower_ != nullptr; }
  // The plan will run this op again: how, has to be written down.
  bool planned_again() const { return follower_ && follower_->again(); }
  // Where the plan was last lost; empty: nowhere.
  std::string why_lost() const;

  // --- everything ----------------------------------------------------------------------------------------------------
  // No kernel may be running. Packs everything at the low end.
  void pack();
  // The last resort before giving up on an op: packs what cannot leave and evicts the rest.
  void compact();
  // The end: brings back whatever is held outside and moves it out of the arena, then drops the lineage. Returns how many
  // storages could not be brought back. What is exposed stays where it is. Pins end here.
  // `spare` bytes behind the arena may be used for it: the budget no longer holds.
  std::size_t retire(Bytes spare = 0);
  // No block is in use: nothing refers to the arena any more.
  bool empty() const;

  // Nothing is under way, and nothing happens, between these: around a fork.
  void freeze();
  void thaw();

  Stats stats() const;
  const Options& options() const { return options_; }
  Driver& driver() { return driver_; }
  const Arena& arena() const { return arena_; }
  void watch(bool on) { watching_ = on; }
  std::vector<Event> take_events();
  // Checks of the rules; at level 2 they run by themselves at every event. A rule may be found broken where nobody can
  // be told (a tensor dies), or where things have to be put in order first: it is told at the next op, or here.
  void check();
  void throw_if_broken();

 private:
  friend class Follower;
  using Lock = std::unique_lock<SpinLock>;

  // One direction of the tier.
  struct Road {
    double rate;                                         // bytes per second
    Seconds took = kShortest, waited = 0.1 * kShortest;  // by transfers, and for them: the last ones weigh more
    Bytes bytes = 0;                                     // on it now

    Seconds seconds(Bytes more) const { return static_cast<double>(more) / rate; }
    void measure(Bytes done, const Transfer& transfer);
  };
  // A transfer that has begun. Without a storage: it died meanwhile, and nobody wants the bytes.
  struct Underway {
    std::uint32_t ticket;
    Storage* storage;
    Block* block;  // raw, unless the storage is on its way out
    Transit direction;
    std::uint32_t page;  // to be dropped at the end
    Bytes bytes;
  };

  void before_planned_slow(std::string_view op);
  void after_planned_slow(std::span<Storage* const> made, std::span<Storage* const> written);
  Block* take(Bytes bytes, Side side);
  void give_back(Block* block);
  Scene scene(Side side) {
    const bool planned = follower_ && follower_->under_way();
    return {options_,           arena_,   lineage_, side,   now_,
            counts_.op_seconds, in_.rate, terms_,   terms_, yielding_ && !planned};
  }
  Block* make_room(Bytes bytes, Side side);
  Block* clear(Run run, Scene& scene);
  Shortage shortage(Bytes needed) const;
  Shortage thrashing(Bytes needed) const;
  Bytes enough_unlocked(std::span<Storage* const> goals) const;
  Block* evict(Storage& storage);
  void evict_eagerly(Storage& storage);
  Block* slide(Storage& storage);
  void moved(Storage& storage, Bytes from);
  void lower(Storage& storage);
  void set_free(Storage& storage);
  void place(Storage& storage, Block* block);
  Block* release_block(Storage& storage);
  void forget(Storage& storage);
  void commit_resident(Storage& storage);
  bool settle(Storage& source, Lock& lock);
  std::size_t settle_if_cheap(Storage& source, std::size_t most);
  std::size_t cut_if_long(Storage& storage);
  void pack_unlocked();
  void compact_unlocked(bool wanted_too);
  void evacuate(Storage& storage, std::vector<Storage*>& outside);

  void bring_back(std::span<Storage* const> goals, Lock& lock);
  void bring_back(Storage& storage, Lock& lock) {
    Storage* const goal = &storage;
    bring_back(std::span(&goal, 1), lock);
  }
  void replay(Op& op, Lock& lock);
  bool fits(std::span<Storage* const> goals) const;
  void bring_back_frugally(std::span<Storage* const> goals, Lock& lock);
  [[noreturn]] void lose(Storage& storage);
  void abandon(Storage& storage);
  Block* target_of(Op& op);

  // Swapping.
  void begin_out(Storage& storage);
  void begin_in(Storage& storage, Block* block);
  void fetch(Storage& storage);
  void miss(Storage& storage);
  bool finish(Storage& storage, bool wait);
  bool finish(Underway& transfer, bool wait);
  void finish_all(bool wait);
  // Nothing is under way afterwards.
  void still(Storage& storage) {
    if (storage.transit != Transit::none) finish(storage, true);
  }
  // Its bytes are not wanted outside any more.
  bool call_off(Storage& storage);
  Underway& underway(const Storage& storage);
  bool clean(std::span<Storage* const> leaving);
  void refused(Storage& storage);
  void left(Storage& storage);
  bool foresees() const { return options_.swap && options_.foresee; }
  Seconds cost_of_reading(const Storage& storage);
  void price_swap(Storage& storage);
  void drop_page(Storage& storage);
  void learn_use(Storage& storage, bool useful);
  void learn_lateness(Storage& storage, const Transfer& read);
  void tend_transfers(Seconds cost);
  double worth_outside(Storage& storage, bool with_walk);
  void clean_ahead();
  void prefetch();
  Seconds latest_fetch() const;
  bool fetch_ahead(Storage& storage);
  Block* room_for(const Storage& storage);
  void entering(std::span<Storage* const> inputs);
  void expect_use(Storage& storage);
  void expect_need(Storage& storage);
  void set_next_use(Storage& storage, Seconds when, Seconds due);

  Bytes in_use() const { return arena_.capacity() - arena_.free_bytes() - cached_; }
  void note_use();
  void lock_operand(Storage& storage);
  void unlock_operand(Storage& storage);
  void note(EventKind kind, const Storage* storage, Bytes offset, Bytes bytes, double value = 0) {
    if (watching_) [[unlikely]]
      events_.push_back({kind, now_, storage ? storage->id : 0, offset, bytes, value});
  }
  void note(EventKind kind, const Storage& storage, double value = 0) {
    const Block* block = storage.block;
    note(kind, &storage, block ? block->offset : 0, block ? block->bytes : 0, value);
  }
  void check_at_event() const {
    if (options_.checks >= 2) check_unlocked();
  }
  void check_unlocked() const;
  // From a destructor.
  void check_where_none_may_throw() noexcept;
  void broken(const char* rule) noexcept;
  // Checks at level 3: after each op, all that can leave leaves, and what is free holds nobody's bytes.
  void shake();
  void spoil(Bytes offset, Bytes bytes) {
    if (options_.checks >= 3) driver_.spoil(offset, bytes);
  }

  const Options options_;
  Driver& driver_;
  mutable SpinLock mutex_;
  Arena arena_;
  Lineage lineage_;
  Classes classes_;
  std::unique_ptr<Policy> policy_;
  Seconds now_ = 0;
  Terms terms_;
  std::atomic<Seconds> room_seconds_ = 0;
  bool yielding_ = true;                // what is wanted may leave instead of what has to be written
  std::atomic<Side> side_ = Side::low;  // other threads may allocate while the next op is prepared
  Bytes cached_ = 0, peak_ = 0;
  Bytes sources_ = 0, raw_ = 0,
        operands_ = 0;  // bytes now: of sources, raw blocks, locked operands that could leave otherwise
  Bytes floor_ = 0;
  Bytes working_ = 0;
  Bytes raw_before_ = 0, raw_most_ = 0;  // without transfers: when the running op was entered, and at most since
  Bytes overdraft_ = 0, top_ = 0;
  Road out_, in_;
  std::vector<Underway> transfers_;
  Bytes carried_ = 0;  // raw bytes that belong to them
  bool retired_ = false;
  std::atomic<bool> transferring_ = false;       // something has gone outside, ever
  bool refused_ = false, room_outside_ = false;  // the tier took something not, and has let something go since
  Bytes news_ = 0;  // bytes that have come or left since it was last considered what to write
  // To be written ahead.
  struct Worthy {
    double worth;  // of a byte, outside; or more
    Storage* storage;
    bool exact;
    bool operator<(const Worthy& other) const {
      return worth != other.worth ? worth < other.worth : storage->id < other.storage->id;
    }
  };
  std::vector<Worthy> worthy_;
  History history_;
  bool logged_ = false;  // the running op
  // Evicted, and their bytes are outside: in the order in which they are used next, as far as that is known, then by age.
  struct Sooner {
    bool operator()(const Storage* a, const Storage* b) const {
      if (a->due != b->due) return b->due == 0 || (a->due != 0 && a->due < b->due);
      return a->id < b->id;
    }
  };
  std::set<Storage*, Sooner> outside_;
  Seconds look_again_ = 0;         // when the first of these has to be on its way
  std::uint64_t last_missed_ = 0;  // the storage that was missed last
  Seconds longest_op_ = 0;         // of late
  double useful_ = 0.5;            // share of what was written ahead that left before it was overwritten, of late
  double price_ = 0;               // of a byte for a second, the most that searches have paid of late
  std::unordered_set<Storage*> held_evicted_;
  Orphans orphans_;
  Trails trails_;
  int walks_ = 0;  // that bring something back, on any thread: they know records
  double fragmentation_sum_ = 0;
  std::uint64_t fragmentation_count_ = 0;
  bool watching_ = false;
  std::string broken_;  // the first rule that was found broken, and has not been told
  Stats counts_;
  std::vector<Event> events_;
  std::unique_ptr<Follower> follower_;
};

}  // namespace coop
