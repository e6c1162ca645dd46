// Who lies where: the one class that gives a storage a block and takes it away.
//
// Each change of state passes here: the arena, the ledger, the events, the driver's pointers, the costs around it and
// the forecast are told in one place, in one order.
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
  // The arena has given it.
  void handed_out(Block& block);
  void give_back(Block* block);
  Footprint& footprint() { return footprint_; }  // of the running op

  // --- storages
  // A raw block becomes the place of a new storage.
  void bind(Storage& storage, Block* block);
  // It is back, in a raw block. `read`: the transfer that brought it; null: an op has run again.
  void restore(Storage& storage, Block* block, const Transfer* read);
  // It leaves; a copy is outside, or it can be made again. Returns the hole.
  Block* evict(Storage& storage);
  // The same for what nobody holds, but ops read, before its room is needed: without keep_dead, and while nothing else
  // is evicted.
  void evict_early(Storage& storage);
  // Its block is free, or was never its own: what follows from that.
  void became_absent(Storage& storage);
  // Its block becomes raw: an op in place works on it.
  Block* make_raw(Storage& storage);
  // It is gone for good. Returns the hole.
  Block* free(Storage& storage);
  // The block now belongs to another storage, which is new or has none: an old version.
  void pass_on(Storage& from, Storage& to);

  // --- moves
  // To the low edge of the hole just below it. Returns the hole, now above it.
  Block* slide(Storage& storage);
  // To the lowest hole that it fits into, if that lies below it.
  void lower(Storage& storage);

  // Held, and not in the arena.
  const std::unordered_set<Storage*>& held_absent() const { return held_absent_; }
  // Nobody holds an absent storage any more.
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
