// The engine for one budget: the lock, the wiring, and what a driver calls.
//
// A driver (the torch hook or the trace player) runs a program op by op. op_call.h has the protocol
// around an op:
//
//     enter(inputs)                       every input is resident and locked
//       allocate(bytes) / free(offset)    from inside the kernel, on any thread
//     bind(...) / record(...)             outputs become storages, the op becomes lineage
//     leave(inputs)
//
// allocate, free and let_go may be called from any thread, everything else only from the thread
// that runs the program. The lock is never held while a kernel runs or while a thread waits for a
// transfer.
//
// docs/architecture.md says which class does what.
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
  // Time spent making room so far. It is not part of any op's cost.
  Seconds room_seconds() const { return room_.seconds(); }

  // --- around an op --------------------------------------------------------------------------------------------------
  // Where the outputs of the op that runs next should go.
  void expect(Side side) { room_.expect(side); }
  Side side_of(double density) const { return room_.side_of(density); }
  // Brings every input back and locks it until leave: resident, and not moved. Rule 3.
  void enter(std::span<Storage* const> inputs);
  void leave(std::span<Storage* const> inputs);
  // The same for storages that are no operands, but that a pointer may lead to.
  void hold(std::span<Storage* const> storages);
  // Other threads have read or written these, which were held, and are done.
  void arrived(std::span<Storage* const> storages);
  // These operands, already entered, are about to be overwritten: their copies in the tier are no
  // longer valid.
  void overwriting(std::span<Storage* const> written);
  // An op has run, recorded or not: advances the clock and does the work between ops.
  void ran(Seconds cost);

  // --- storages ------------------------------------------------------------------------------------------------------
  // The raw block at this offset becomes a storage, attached to its handle. It is a source until an
  // op that makes it is recorded.
  Storage* bind(Bytes offset, Bytes bytes, void* handle);
  // A source that only the lineage refers to.
  Storage* bind_hidden(Bytes offset, Bytes bytes) { return bind(offset, bytes, nullptr); }
  // A storage whose bytes lie outside the arena. It lives while ops read it.
  Storage* bind_foreign(Bytes bytes, void* handle);
  // The program no longer refers to the storage.
  void let_go(Storage& storage);
  // Forgets the storage if nobody holds it and no recorded op reads it: a foreign or hidden one, or
  // an old version.
  void reconsider(Storage& storage);

  // --- lineage -------------------------------------------------------------------------------------------------------
  // Records an op that can be run again. Takes ownership of the recipe.
  void record(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
              InPlace in_place = InPlace::no);
  // Whether an op that reads these would lie deeper in the lineage than Options::max_depth allows.
  bool too_deep(std::span<Storage* const> inputs) const;
  // To be called before an op that overwrites these is entered. Rule 5.
  void before_overwrite(std::span<Storage* const> storages);
  // For runs without Options::in_place: the storage moves to a copy of its bytes. Returns the old
  // version, which keeps the block.
  Storage* copy_on_write(Storage& storage);
  // A recomputable storage has been overwritten. Returns the old version, which is absent and keeps
  // the recipe and the consumers. The storage itself is a source until the op that wrote it is
  // recorded.
  Storage* split(Storage& storage);
  // A source whose bytes the program has dropped, and will probably make again: they are kept for
  // what was made from them, instead of being an orphan. Or no longer.
  void expect_back(Storage& storage, bool returns);
  // The program has made the bytes of `gone` again, in `same`. Both are resident sources, and no op
  // has read `same`. What was made from `gone` is made from `same` now.
  void replace(Storage& gone, Storage& same);
  // Brings the storage back and cuts its lineage: it is a source from now on.
  void commit(Storage& storage);
  void materialise(Storage& storage);
  void pin(Storage& storage);
  void unpin(Storage& storage);
  // Pins made by the program. They end at the latest when the program drops the storage.
  void pin_held(Storage& storage);
  void unpin_held(Storage& storage);
  // A pointer to the storage becomes known outside: the storage is brought back, committed, and
  // never moved or evicted while it lives. Everything that depends on it is committed too.
  void expose(Storage& storage);

  // --- a plan --------------------------------------------------------------------------------------------------------
  // From now on, while the program does what was planned, the plan decides what leaves and what
  // comes back. Null: no plan.
  void follow(std::shared_ptr<const Planned> plan);
  // The driver is about to run an op; and has run it. Without a plan these do nothing.
  void before_planned(std::string_view op) {
    if (follower_) [[unlikely]]
      before_planned_slow(op);
  }
  void after_planned(std::span<Storage* const> made, std::span<Storage* const> written) {
    if (follower_) [[unlikely]]
      after_planned_slow(made, written);
  }
  bool following() const { return follower_ != nullptr; }
  // The plan will run this op again, so it has to be recorded.
  bool planned_again() const { return follower_ && follower_->again(); }
  // Where the plan was last lost; empty: never.
  std::string why_lost() const;

  // --- when there is no room -----------------------------------------------------------------------------------------
  // The most bytes in one piece that could be freed now.
  Bytes largest_run() const;
  // Packs everything at the low end. No kernel may be running.
  void pack();
  // The last resort before an op fails: evicts everything that can leave and packs the rest.
  void compact();
  // A budget that is enough to bring these back, whatever is evicted: the bytes that cannot leave,
  // and those of a simple schedule.
  Bytes enough_for(std::span<Storage* const> inputs);
  // To measure an op that has failed: adds so many bytes behind the arena and fills it from the low
  // end. The op's results are dropped. Rule 1 does not hold until end_overdraft. `compact` restarts
  // the measurement.
  void overdraw(Bytes bytes);
  // A budget that is enough for an op that ran in the overdraft: from the highest byte that was in
  // use.
  Bytes enough_beyond(std::span<Storage* const> inputs);
  // False: bytes of another thread lie there. Wait and call again.
  bool end_overdraft();

  // --- the end -------------------------------------------------------------------------------------------------------
  // Brings back everything that is held and moves it out of the arena, then drops the lineage.
  // Exposed storages stay where they are. Pins end here. `extra` bytes behind the arena may be
  // used, because the budget no longer holds. Returns how many storages could not be brought back.
  std::size_t retire(Bytes extra = 0);
  // No block is in use.
  bool empty() const;

  // --- everything ----------------------------------------------------------------------------------------------------
  // Around a fork: from freeze to thaw the engine is locked and no transfer is under way.
  void freeze();
  void thaw();

  Stats stats() const;
  // Two of them alone, for a driver that asks after each op.
  Bytes floor() const { return ledger_.floor(); }
  Seconds recompute_seconds() const { return counts_.recompute_seconds; }
  const Options& options() const { return options_; }
  Driver& driver() { return driver_; }
  const Arena& arena() const { return arena_; }
  void watch(bool on) { journal_.watch(on); }
  std::vector<Event> take_events();
  // Checks the rules now; from level 2 on this happens at every event. A rule may be found broken
  // where nothing can be thrown (a tensor is being destroyed) or where the state has to be made
  // consistent first: that is thrown at the next op, or here.
  void check();
  void throw_if_broken();
  // A driver has found a rule broken: that is thrown at the next op.
  void broken(const char* rule) { checks_.broken(rule); }

 private:
  using Lock = std::lock_guard<Gate>;

  void before_planned_slow(std::string_view op);
  void after_planned_slow(std::span<Storage* const> made, std::span<Storage* const> written);
  void forget(Storage& storage);
  void end_exposure(Storage& storage);
  Storage* split_unlocked(Storage& storage);
  void evacuate_all(std::vector<Storage*>& outside);
  void inspect() const;

  // Each uses only those above it.
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
