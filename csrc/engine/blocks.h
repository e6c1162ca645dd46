// Which storage lies in which block: the only class that gives a storage a block or takes it away.
//
// Every change of a storage's state happens here. The arena, the ledger, the journal, the driver,
// the costs and the forecast are told in one place, always in the same order.
#pragma once

#include <unordered_set>

#include "engine/arena.h"
#include "engine/checks.h"
#include "engine/cost.h"
#include "engine/driver.h"
#include "engine/footprint.h"
#include "engine/forecast.h"
#include "engine/journal.h"
#include "engine/ledger.h"
#include "engine/stats.h"
#include "engine/trails.h"

namespace coop {

class Blocks {
 public:
  Blocks(Driver& driver, const Clock& clock, Arena& arena, Ledger& ledger, Journal& journal, Cost& cost,
         Forecast& forecast, Trails& trails, Checks& checks, Stats& counts)
      : driver_(driver),
        clock_(clock),
        arena_(arena),
        ledger_(ledger),
        journal_(journal),
        cost_(cost),
        forecast_(forecast),
        trails_(trails),
        checks_(checks),
        counts_(counts) {}

  // --- raw blocks
  // The arena has just handed it out.
  void handed_out(Block& block);
  void give_back(Block* block);
  Footprint& footprint() { return footprint_; }  // of the running op

  // --- storages
  // A raw block becomes the block of a new storage.
  void bind(Storage& storage, Block* block);
  // An absent storage is back: the raw block holds its bytes. `read`: the transfer that brought
  // them; null: an op ran again.
  void restore(Storage& storage, Block* block, const Transfer* read);
  // The storage leaves: a copy is in the tier, or it can be recomputed. Returns the hole.
  Block* evict(Storage& storage);
  // The same for a storage that nobody holds but recorded ops read, before its room is needed:
  // without keep_dead, while nothing else is evicted, or under a plan.
  void evict_early(Storage& storage);
  // Its block is gone already: updates costs and forecast.
  void became_absent(Storage& storage);
  // Its block becomes raw, and is returned: an in-place op overwrites it.
  Block* make_raw(Storage& storage);
  // Frees its block and nothing else. Returns the hole.
  Block* free(Storage& storage);
  // The block of `from` now belongs to `to`, an old version that has none.
  void pass_on(Storage& from, Storage& to);

  // --- moves
  // Moves it to the low edge of the hole just below it. Returns the hole, now above it.
  Block* slide(Storage& storage);
  // Moves it to the lowest hole that it fits into, if that lies below it.
  void lower(Storage& storage);

  // Storages that are held but absent.
  const std::unordered_set<Storage*>& held_absent() const { return held_absent_; }
  // An absent storage is no longer held.
  void let_go_absent(Storage& storage);

 private:
  void moved(Storage& storage, Bytes from);
  void spoil(Bytes offset, Bytes bytes) {
    if (checks_.level() >= 3) driver_.spoil(offset, bytes);
  }

  Driver& driver_;
  const Clock& clock_;
  Arena& arena_;
  Ledger& ledger_;
  Journal& journal_;
  Cost& cost_;
  Forecast& forecast_;
  Trails& trails_;
  Checks& checks_;
  Stats& counts_;
  Footprint footprint_;
  std::unordered_set<Storage*> held_absent_;
};

}  // namespace coop
