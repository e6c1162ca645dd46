// The engine for one budget: the lock, the wiring, and what a driver calls.
//
// A driver (the torch hook, or a trace player) runs a program op by op; op_call.h has the order of things around an op:
//
//     enter(inputs)                       every input is resident and locked
//       allocate(bytes) / free(offset)    from inside the kernel, on any thread
//     bind(...) / record(...)             outputs become storages, the op becomes lineage
//     leave(inputs)
//
// allocate, free and let_go may be called from any thread; the rest from the thread that runs the program. The lock is
// never held while a kernel runs or a transfer is waited for.
//
// Who does what: docs/architecture.md.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/ahead.h"
#include "engine/follower.h"
#include "engine/walk.h"

namespace coop {

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
  Seconds room_seconds() const { return room_.seconds(); }

  // --- around an op --------------------------------------------------------------------------------------------------
  // Where the outputs of the op that runs next should go.
  void expect(Side side) { room_.expect(side); }
  Side side_of(double density) const { return room_.side_of(density); }
  // Brings every input back, in place and locked until leave. Rule 3.
  void enter(std::span<Storage* const> inputs);
  void leave(std::span<Storage* const> inputs);
  // The same for what is not an operand, but may be pointed to.
  void hold(std::span<Storage* const> storages);
  // Other threads have read or written these, which were held, and are done.
  void arrived(std::span<Storage* const> storages);
  // These operands, which are entered, are about to be overwritten: what is outside is not their bytes any more.
  void overwriting(std::span<Storage* const> written);
  // Of an op that ran, recorded or not.
  void ran(Seconds cost);

  // --- storages ------------------------------------------------------------------------------------------------------
  // The raw block at this offset becomes a storage, attached to its handle: a source, until an op is recorded that makes
  // it.
  Storage* bind(Bytes offset, Bytes bytes, void* handle);
  // A source that only the lineage refers to.
  Storage* bind_hidden(Bytes offset, Bytes bytes) { return bind(offset, bytes, nullptr); }
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
  // A recomputable storage has been overwritten. Returns the old version: evicted unless copied, it keeps the recipe and
  // the consumers. The storage itself is a source until a record tells how it was made.
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

  // --- when there is no room -----------------------------------------------------------------------------------------
  // No kernel may be running. Packs everything at the low end.
  void pack();
  // The last resort before giving up on an op: packs what cannot leave and evicts the rest.
  void compact();
  // A budget in which these can be brought back, whatever has left before: what cannot leave, and a simple schedule.
  Bytes enough_for(std::span<Storage* const> inputs);
  // For an op that has failed, to see what it takes: so many bytes behind the arena may be used, from the low end
  // upwards, and what it gets done is dropped. Rule 1 does not hold meanwhile. `compact` begins the measuring anew.
  void overdraw(Bytes bytes);
  // A budget in which an op that has run so far beyond the arena runs: by the highest byte that was in use.
  Bytes enough_beyond(std::span<Storage* const> inputs);
  // False: somebody else lies there, and has to be waited for.
  bool end_overdraft();

  // --- the end -------------------------------------------------------------------------------------------------------
  // Brings back whatever is held outside and moves it out of the arena, then drops the lineage. Returns how many storages
  // could not be brought back. What is exposed stays where it is. Pins end here. `spare` bytes behind the arena may be
  // used for it: the budget no longer holds.
  std::size_t retire(Bytes spare = 0);
  // No block is in use: nothing refers to the arena any more.
  bool empty() const;

  // --- everything ----------------------------------------------------------------------------------------------------
  // Nothing is under way, and nothing happens, between these: around a fork.
  void freeze();
  void thaw();

  Stats stats() const;
  const Options& options() const { return options_; }
  Driver& driver() { return driver_; }
  const Arena& arena() const { return arena_; }
  void watch(bool on) { journal_.watch(on); }
  std::vector<Event> take_events();
  // Checks of the rules; at level 2 they run by themselves at every event. A rule may be found broken where nobody can be
  // told (a tensor dies), or where things have to be put in order first: it is told at the next op, or here.
  void check();
  void throw_if_broken();

 private:
  using Lock = std::lock_guard<Gate>;

  void before_planned_slow(std::string_view op);
  void after_planned_slow(std::span<Storage* const> made, std::span<Storage* const> written);
  void forget(Storage& storage);
  void end_exposure(Storage& storage);
  Storage* split_unlocked(Storage& storage);
  void evacuate_all(std::vector<Storage*>& outside);
  void inspect() const;

  // In the order in which they depend on each other.
  const Options options_;
  Driver& driver_;
  mutable Gate gate_;
  Clock clock_;
  Stats counts_;
  Journal journal_;
  Checks checks_;
  Arena arena_;
  Ledger ledger_;
  Stamps stamps_;
  Cost cost_;
  Lineage lineage_;
  Forecast forecast_;
  Trails trails_;
  Blocks blocks_;
  Commits commits_;
  Transfers transfers_;
  Room room_;
  Walk walk_;
  Ahead ahead_;
  std::unique_ptr<Follower> follower_;
  Bytes overdraft_ = 0;
  bool retired_ = false;
};

}  // namespace coop
