// Rematerialising: which ops run again, in which order, and what is pinned meanwhile.
//
// The walk is depth first; of several absent inputs, the one that needs the most room comes first.
// A storage that was brought back for a waiting op is pinned. Everything else that the missing ops
// will read is wanted: it leaves only when nothing else can, and is then brought back once more,
// with its op waiting too. So nothing is recomputed twice if memory allows.
//
// If there is no room even so, memory is packed, then emptied, and a simple schedule takes over if
// it fits (schedule.h). If it does not fit, the walk starts anew with everything evicted. If that
// fails too, it starts once more and pins nothing but the operands of the op that runs.
//
// Before each op of the schedule, everything that the schedule no longer reads leaves, and the rest
// is packed. So a budget is enough if it holds what cannot leave plus the schedule's bytes,
// whatever happened before. This is the figure in a tip (decision 16).
#pragma once

#include <span>

#include "engine/commits.h"
#include "engine/room.h"

namespace coop {

class Walk {
 public:
  Walk(const Options& options, Driver& driver, Gate& gate, Clock& clock, Arena& arena, Ledger& ledger, Journal& journal,
       Lineage& lineage, Forecast& forecast, Blocks& blocks, Transfers& transfers, Room& room, Commits& commits,
       Checks& checks, Stats& counts);

  // Afterwards all goals are resident, and stay so while the lock is held. A goal that the program
  // drops meanwhile stays a storage; the caller reconsiders it.
  void bring_back(std::span<Storage* const> goals);
  void bring_back(Storage& storage) {
    Storage* const goal = &storage;
    bring_back(std::span(&goal, 1));
  }
  // Begins to read a swapped storage back. Other storages leave if necessary.
  void fetch(Storage& storage);
  // Rule 5: everything alive that would need the present value of a source is brought back and
  // committed. True: there was something to commit.
  bool commit_dependents(Storage& source);

  // Some thread is bringing something back and has pointers to records: do not sweep.
  bool any() const { return walking_ > 0; }

  // A budget that is enough to bring these back, whatever is evicted: the bytes that cannot leave,
  // and those of a simple schedule.
  Bytes enough_for(std::span<Storage* const> goals);
  // The same for the walks so far that found no room at first, and succeeded even so.
  Bytes enough_so_far() const { return enough_so_far_; }

  // The storage is lost: reading it is an error from now on. It keeps its lineage, because what was
  // made from it may still come back.
  void abandon(Storage& storage);

 private:
  class Attempt;
  class Pins;

  void run_schedule(std::span<Storage* const> goals);
  bool schedule_fits(std::span<Storage* const> goals) const;
  void replay(Op& op, Side side);
  Block* target_of(Op& op);
  void read_now(Storage& storage);
  [[noreturn]] void throw_lost(Storage& storage);

  const Options& options_;
  Driver& driver_;
  Gate& gate_;
  Clock& clock_;
  Arena& arena_;
  Ledger& ledger_;
  Journal& journal_;
  Lineage& lineage_;
  Forecast& forecast_;
  Blocks& blocks_;
  Transfers& transfers_;
  Room& room_;
  Commits& commits_;
  Checks& checks_;
  Stats& counts_;
  int walking_ = 0;
  Bytes enough_so_far_ = 0;
  Storage* lost_ = nullptr;  // the storage that a Lost exception is about
};

}  // namespace coop
