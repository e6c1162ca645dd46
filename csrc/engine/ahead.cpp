#include "engine/ahead.h"

#include <algorithm>
#include <utility>

namespace coop {

namespace {
// In the tier, not yet on its way back, and not droppable.
bool waits(const Storage* storage) { return storage->copy.transit == Transit::none && !storage->droppable(); }
}  // namespace

void Ahead::tend(Seconds cost) {
  constexpr double kForgetting = 0.99;
  longest_op_ = std::max(kForgetting * longest_op_, cost);
  transfers_.finish_done();
  if (stopped_) return;
  write();
  read();
}

// --- writing -----------------------------------------------------------------------------------------------------------

// What each byte of the storage would be worth in the tier, in seconds. A byte that is free for a
// second is worth what searches have paid for one. It is worth no more than swapping the storage
// when its room is needed, or recomputing it. Only a walk over the lineage finds the cost of
// recomputing: `with_walk`.
double Ahead::worth_outside(Storage& storage, bool with_walk) {
  const auto bytes = static_cast<double>(storage.bytes);
  const Seconds writing = transfers_.out().seconds(storage.bytes), reading = transfers_.cost_of_reading(storage);
  Seconds value = std::min(room_.price() * bytes * storage.idle(clock_), writing + reading);
  if (with_walk && storage.producer) value = std::min(value, cost_.projected(storage));
  return (forecast_.useful(storage) * (value - reading) - options_.swap_load * writing) / bytes;
}

// Writes the storages that are worth most in the tier, so that they can leave at once when room is
// needed.
void Ahead::write() {
  constexpr Seconds kAhead = 0.01;  // of writing, queued at a time
  constexpr double kWorthwhile = 2;
  constexpr Bytes kChanged = 64;  // look again when 1/64 of the budget has changed
  const Link& out = transfers_.out();
  if (out.bytes || room_.price() <= 0 || forecast_.changed_bytes() < options_.budget / kChanged) return;
  forecast_.restart_changed_bytes();
  candidates_.clear();
  for (Block* block = arena_.first(); block; block = block->next) {
    Storage* storage = block->storage;
    if (!storage || !storage->evictable(false) || storage->copy.page || !storage->swappable()) continue;
    if (storage->droppable()) continue;
    if (const double worth = worth_outside(*storage, false); worth > 0) candidates_.push_back({worth, storage, false});
  }
  std::make_heap(candidates_.begin(), candidates_.end());
  while (!candidates_.empty() && out.seconds(out.bytes) < kAhead) {
    std::pop_heap(candidates_.begin(), candidates_.end());
    WriteCandidate& best = candidates_.back();
    if (!std::exchange(best.exact, true)) {  // so far this was an upper bound
      best.worth = worth_outside(*best.storage, true);
      best.worth > 0 ? std::push_heap(candidates_.begin(), candidates_.end()) : candidates_.pop_back();
      continue;
    }
    Storage& storage = *best.storage;
    candidates_.pop_back();
    // Its idle time must be well above the time to write it and read it back.
    const Seconds away = out.seconds(out.bytes + storage.bytes) + transfers_.in().seconds(storage.bytes);
    if (storage.idle(clock_) <= kWorthwhile * away) continue;
    transfers_.begin_out(storage);
    forecast_.wrote_ahead(storage, storage.copy.transit == Transit::out);
  }
}

// --- reading -----------------------------------------------------------------------------------------------------------

// Reads back the storages that are used soon, in the order of their next use, as far as there is
// room.
void Ahead::read() {
  const auto& outside = forecast_.outside();
  if (outside.empty()) return;
  if (forecast_.known()) {
    constexpr int kMost = 8;  // reads begun at a time
    for (int i = 0; i < kMost; ++i) {
      if (forecast_.take_changed()) look_again_ = 0;
      if (clock_.ran < look_again_) return;
      const auto first = std::find_if(outside.begin(), outside.end(), waits);
      if (first != outside.end() && 0 < (*first)->outlook.due && (*first)->outlook.due <= clock_.ran) {
        forecast_.expect_use(**first);  // it was not used when the history said: look up the next use
        continue;
      }
      forecast_.take_changed();
      look_again_ = latest_read();
      if (clock_.ran < look_again_ || first == outside.end() || !read_now(**first)) return;
    }
  } else if (forecast_.last_missed()) {
    // A backward pass reads results in the reverse of the order in which they were made.
    Storage* found = nullptr;
    for (Storage* storage : outside) {
      if (waits(storage) && storage->id < forecast_.last_missed() && (!found || storage->id > found->id)) {
        found = storage;
      }
    }
    if (found && read_now(*found)) forecast_.missed(*found);
  }
}

// When the next read has to begin, so that each storage is back in time. The link carries one after
// the other.
Seconds Ahead::latest_read() const {
  constexpr double kMargin = 1.25, kOps = 2;
  const Link& in = transfers_.in();
  Seconds on_the_way = in.seconds(in.bytes), latest = kNever;
  for (const Storage* storage : forecast_.outside()) {
    if (storage->outlook.due == 0) break;
    if (!waits(storage)) continue;
    on_the_way += in.seconds(storage->bytes);
    // A read begins between two ops: leave time for the op that runs until then.
    latest = std::min(latest, storage->outlook.due - kMargin * on_the_way - kOps * longest_op_);
    if (latest <= clock_.ran) break;
  }
  return latest;
}

// False: the link is busy, or there is no room.
bool Ahead::read_now(Storage& storage) {
  constexpr Bytes kInFlight = 8;  // at most 1/8 of the budget is being read
  const Link& in = transfers_.in();
  if (in.bytes && in.bytes + storage.bytes > options_.budget / kInFlight) return false;
  // A storage that waits for the link takes up room. So the link only gets enough work to last
  // until the next op ends.
  if (in.bytes && in.seconds(in.bytes) > longest_op_) return false;
  Block* block = room_for(storage);
  if (!block) return false;
  journal_.note(EventKind::place, *block);
  forecast_.reads_ahead(storage, true);
  transfers_.begin_in(storage, block);
  ledger_.count();
  return true;
}

// Room for the storage: a hole, or the blocks of storages that can leave at once and are used
// later.
Block* Ahead::room_for(const Storage& storage) {
  if (Block* hole = arena_.allocate(storage.bytes, Side::low)) return hole;
  if (!forecast_.known()) return nullptr;
  const Bytes needed = arena_.round(storage.bytes);
  SearchContext context = room_.context(Side::low);
  room_.tell_prices(context, needed);
  const Run run = room_.policy().choose(context, needed);
  if (!run) return nullptr;
  Bytes gain = 0;
  for (const Block* beside : {run.first->prev, run.last->next}) {
    if (beside && beside->free()) gain += beside->bytes;
  }
  bool at_once = true;
  run.each([&](const Block& block) {
    gain += block.bytes;
    if (!block.storage || !at_once) return;
    const Storage& there = *block.storage;
    const bool later = there.droppable() || (there.copy.page && there.outlook.next_use > storage.outlook.due);
    at_once = later && there.copy.transit == Transit::none && !context.moves_aside(*block.storage);
  });
  if (!at_once || gain < needed) return nullptr;  // too little: a policy that names one storage at a time
  Block* hole = room_.clear(run, context);
  return hole && hole->bytes >= needed ? arena_.take(hole, needed, Side::low) : nullptr;
}

}  // namespace coop
