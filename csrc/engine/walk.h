// Rematerialising: which ops, in which order, under which pins.
//
// The walk is depth first, and of several absent inputs the one that takes the most room comes first. What it has
// brought back for an op that still waits is pinned. Everything else that the missing ops will read is wanted: it leaves
// only when nothing else can make room, and is brought back once more; then its op waits too. So nothing is recomputed
// twice where memory allows. Where there is no room even so, memory is packed, then emptied, and a simple schedule takes
// over if there is room for it (schedule.h). If not, the walk starts anew with everything gone; if it comes to that
// again, it holds on to nothing but the operands of the op that runs.
//
// Before each op of the schedule everything leaves that it will not read any more, and the rest is packed. So a budget
// that holds what cannot leave and the schedule's bytes is enough, whatever happened before: this is what a tip says
// (decision 16).
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

  // Afterwards all goals are resident, and stay so for as long as the lock is held. They stay storages meanwhile, even
  // if they are let go: it is the caller who reconsiders them.
  void bring_back(std::span<Storage* const> goals);
  void bring_back(Storage& storage) {
    Storage* const goal = &storage;
    bring_back(std::span(&goal, 1));
  }
  // Begins to read it in, whatever has to leave for it.
  void fetch(Storage& storage);
  // Everything alive that would need the present value of a source becomes resident and is committed: rule 5. True:
  // there was anything to do.
  bool commit_dependents(Storage& source);

  // Some thread is bringing something back, and knows records.
  bool any() const { return walking_ > 0; }

  // A budget in which these can be brought back, whatever has left before: what cannot leave, and a simple schedule.
  Bytes enough_for(std::span<Storage* const> goals);
  // The same, for the walks so far that came through by luck.
  Bytes enough_so_far() const { return enough_so_far_; }

  // It is lost: reading it is an error from now on. It keeps its lineage: what was made from it may still come back.
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
  Storage* lost_ = nullptr;  // that was found lost just now
};

}  // namespace coop
