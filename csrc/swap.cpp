// Swapping: bytes leave for a tier outside the arena and come back, beside the program.
//
// A transfer has begun, is under way, and is finished: by the program thread, between ops or when it has to wait. On its
// way out a storage is still resident; ops may read it, and whoever wants to overwrite, move or drop it waits. On its way in
// it has a raw block, which counts like every other. What dies meanwhile leaves its block to the transfer.
//
// Nobody has to wait where the engine is ahead: what the next window would swap is written while ops run (clean_ahead), and
// what the history says is used soon is read (prefetch). Both are guesses, and only cost time.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "engine.h"

namespace coop {

namespace {
constexpr Seconds kNever = std::numeric_limits<Seconds>::infinity();
}

void Engine::Road::measure(Bytes done, const Transfer& transfer) {
  constexpr double kWeight = 0.2;
  const Seconds seconds = std::max(transfer.seconds, kShortest);
  rate += kWeight * (static_cast<double>(done) / seconds - rate);
  waiting += kWeight * (std::min(transfer.waited / seconds, 1.0) - waiting);
}

// --- a transfer --------------------------------------------------------------------------------------------------------

Engine::Underway& Engine::underway(const Storage& storage) {
  return *std::find_if(transfers_.begin(), transfers_.end(), [&](const Underway& t) { return t.storage == &storage; });
}

void Engine::begin_out(Storage& storage) {
  if (storage.page || storage.transit != Transit::none) return;
  const std::uint32_t ticket = driver_.begin_out(storage.block->offset, storage.bytes, now_);
  if (!ticket) return refused(storage);
  transfers_.push_back({ticket, &storage, storage.block, Transit::out, 0, storage.bytes});
  storage.transit = Transit::out;
  out_.bytes += storage.bytes;
  price_swap(storage);
}

// Into a raw block.
void Engine::begin_in(Storage& storage, Block* block) {
  const std::uint32_t ticket = driver_.begin_in(storage.page, block->offset, storage.bytes, now_);
  transfers_.push_back({ticket, &storage, block, Transit::in, 0, storage.bytes});
  storage.transit = Transit::in;
  in_.bytes += storage.bytes;
}

bool Engine::finish(Storage& storage, bool wait) {
  if (storage.transit == Transit::none) return true;
  return finish(underway(storage), wait);
}

bool Engine::finish(Underway& transfer, bool wait) {
  const Transfer result = driver_.finish(transfer.ticket, wait, now_);
  if (!result.done) return false;
  const Underway done = std::exchange(transfer, transfers_.back());
  transfers_.pop_back();
  const bool out = done.direction == Transit::out;
  Road& road = out ? out_ : in_;
  road.bytes -= done.bytes;
  road.measure(done.bytes, result);
  now_ += result.waited;
  counts_.transfer_seconds += result.seconds;
  counts_.hidden_seconds += std::max(result.seconds - result.waited, 0.0);
  if (result.page) {
    ++(out ? counts_.swaps_out : counts_.swaps_in);
    (out ? counts_.swapped_out : counts_.swapped_in) += done.bytes;
  }
  if (!done.storage) {
    give_back(done.block);
    if (const std::uint32_t page = out ? result.page : done.page) driver_.drop_page(page);
    room_outside_ = refused_;
    return true;
  }
  Storage& storage = *done.storage;
  storage.transit = Transit::none;
  if (out) {
    storage.page = result.page;
    result.page ? price_swap(storage) : refused(storage);
  } else if (result.page) {
    raw_ -= done.block->bytes;
    place(storage, done.block);
    --counts_.rematerialisations;  // nothing was run again
    if (!storage.producer) sources_ += storage.bytes;
    price_swap(storage);
  } else {  // lost: it has to be recomputed, if it can be
    give_back(done.block);
    drop_page(storage);
    lineage_.evicted(storage);
  }
  check_at_event();
  return true;
}

void Engine::finish_all(bool wait) {
  for (std::size_t i = 0; i < transfers_.size();) {
    if (!finish(transfers_[i], wait)) ++i;  // else another has taken its place
  }
}

// The tier does not take it, until it is used the next time, or there is room again.
void Engine::refused(Storage& storage) {
  storage.swap_cost = kNever;
  refused_ = true;
}

// A storage has no block any more: it is outside, or has to be made again.
void Engine::left(Storage& storage) {
  if (storage.page) {
    outside_.emplace(storage.id, &storage);
  } else {
    lineage_.evicted(storage);
  }
}

void Engine::drop_page(Storage& storage) {
  if (!storage.page) return;
  outside_.erase({storage.id, &storage});
  driver_.drop_page(std::exchange(storage.page, 0));
  room_outside_ = refused_;
}

// What of its leaving and coming back the program would wait for.
void Engine::price_swap(Storage& storage) {
  if (!options_.swap || storage.bytes < options_.swap_least || storage.foreign) return;
  const bool written = storage.page || storage.transit == Transit::out;
  const Seconds cost = (written ? 0 : out_.price(storage.bytes)) + in_.price(storage.bytes);
  const bool less = cost < storage.swap_cost;
  storage.swap_cost = cost;
  if (less) got_cheaper(storage);
}

// Before these leave: where they take their bytes with them, those are outside afterwards, and no transfer is under way.
// False: one of them could not, and has to stay.
bool Engine::clean(std::span<Storage* const> leaving) {
  for (Storage* storage : leaving) {
    if (swaps(lineage_, *storage)) begin_out(*storage);
  }
  bool all = true;
  for (Storage* storage : leaving) {
    still(*storage);
    all = all && (storage->producer || storage->page);
  }
  return all;
}

// Begins to bring back what is needed now.
void Engine::fetch(Storage& storage) {
  if (storage.transit != Transit::none) return;
  ++counts_.prefetch_misses;
  last_missed_ = storage.id;
  ++storage.pins;
  Block* block = nullptr;
  try {
    block = take(storage.bytes, Side::low);
  } catch (...) {
    --storage.pins;
    throw;
  }
  --storage.pins;
  begin_in(storage, block);
}

// Its bytes are nowhere, and nothing can make them again.
void Engine::lose(Storage& storage) {
  if (storage.held) abandon(storage);
  storage.in_hand = false;
  storage.lost = true;
  throw Lost(
      "a tensor of " + std::to_string(storage.bytes) +
      " bytes that had been swapped out did not come back as it was, and it cannot be recomputed: its memory, or its "
      "file, was changed or could not be read. It is lost; the other tensors are not. Tip: go on from the last "
      "checkpoint, with another place to swap to");
}

void Engine::overwriting(std::span<Storage* const> written) {
  for (Storage* storage : written) {
    if (storage->transit == Transit::none && !storage->page) continue;
    const Lock lock(mutex_);
    still(*storage);
    if (!storage->source()) continue;  // a page of what can be made again stays with the old version
    drop_page(*storage);
    price_swap(*storage);
  }
}

// --- ahead of the program ----------------------------------------------------------------------------------------------

// An op is about to use these, which may be absent.
void Engine::entering(std::span<Storage* const> inputs) {
  if (foresees() && !std::exchange(logged_, true)) history_.used(inputs, now_);
  for (Storage* input : inputs) {
    if (std::exchange(input->fetched, false)) ++counts_.prefetch_hits;
    if (foresees()) expect_use(*input);
    price_swap(*input);  // speeds have changed, or the tier has room again
  }
}

void Engine::expect_use(Storage& storage) {
  const Seconds idle = history_.idle(storage);
  storage.next_use = idle > 0 ? now_ + idle : 0;
  if (idle > 0) got_cheaper(storage);
}

// Between ops.
void Engine::tend_transfers() {
  logged_ = false;
  finish_all(false);
  if (to_clean_) clean_ahead();
  prefetch();
}

// What the next request would swap out is written now. One window, and the next when that is done.
void Engine::clean_ahead() {
  constexpr Bytes kPart = 32;  // of the budget, at least
  if (out_.bytes) return;
  Scene scene{options_, arena_, lineage_, Side::high, now_, terms_, terms_};
  const Run run = policy_->choose(scene, std::min(std::max(last_request_, options_.budget / kPart), options_.budget));
  to_clean_ = false;
  if (!run.first) return;
  for (Block* block = run.first;; block = block->next) {
    Storage* storage = block->storage;
    if (storage && !storage->page && !stays(scene, *storage) && swaps(lineage_, *storage)) {
      begin_out(*storage);
      to_clean_ = true;
    }
    if (block == run.last) break;
  }
}

// What is used soon is read now, in the order in which it is used, as far as there is room for it.
void Engine::prefetch() {
  if (outside_.empty()) return;
  if (history_.known()) {
    constexpr int kFar = 64;  // uses at a time
    History::Next next;
    for (int i = 0; i < kFar && history_.peek(next); ++i) {
      if (next.storage && next.storage->evicted() && !fetch_ahead(*next.storage, next.in)) return;
      history_.pass();
    }
  } else if (last_missed_) {
    // A backward pass wants what was made before what it has just wanted.
    auto before = outside_.lower_bound({last_missed_, nullptr});
    if (before == outside_.begin()) return;
    Storage& storage = *std::prev(before)->second;
    if (fetch_ahead(storage, 0)) last_missed_ = storage.id;
  }
}

// False: not now.
bool Engine::fetch_ahead(Storage& storage, Seconds in) {
  constexpr double kEarly = 4;    // times as long before as it takes
  constexpr Bytes kInFlight = 8;  // part of the budget, at most
  if (!storage.page || storage.transit != Transit::none) return true;
  if (in_.bytes && in_.bytes + storage.bytes > options_.budget / kInFlight) return false;
  if (in > kEarly * in_.seconds(in_.bytes + storage.bytes)) return false;
  Block* block = room_for(storage, in);
  if (!block) return false;
  raw_ += block->bytes;
  note_use();
  note(EventKind::place, nullptr, block->offset, block->bytes);
  storage.fetched = true;
  begin_in(storage, block);
  return true;
}

// A hole, or the place of storages that can leave at once and are used later.
Block* Engine::room_for(const Storage& storage, Seconds in) {
  if (Block* hole = arena_.allocate(storage.bytes, Side::low)) return hole;
  if (!history_.known()) return nullptr;
  const Bytes needed = arena_.round(storage.bytes);
  Scene scene{options_, arena_, lineage_, Side::low, now_, terms_, terms_};
  const Run run = policy_->choose(scene, needed);
  if (!run.first) return nullptr;
  for (Block* block = run.first;; block = block->next) {
    if (const Storage* there = block->storage) {
      const bool later = there->spare() || (there->page && there->next_use > now_ + in);
      if (!later || there->transit != Transit::none || stays(scene, *block->storage)) return nullptr;
    }
    if (block == run.last) break;
  }
  Block* hole = clear(run, scene);
  return hole && hole->bytes >= needed ? arena_.take(hole, needed, Side::low) : nullptr;
}

}  // namespace coop
