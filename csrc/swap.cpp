// Swapping: bytes leave for a tier outside the arena and come back, beside the program.
//
// A transfer begins, is under way, and is finished: between two ops, or when somebody has to wait for it. On its way out a
// storage is still resident; ops may read it, but it neither leaves nor moves, and an op that overwrites it calls the
// transfer off or waits. On its way in it has a raw block, which counts like every other. What dies meanwhile leaves its
// block to the transfer.
//
// Nobody has to wait where the engine is ahead: what is worth the most outside is written while ops run (clean_ahead), and
// what the history says is used soon is read (prefetch). Both are guesses, and only cost time. Decision 15.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "engine.h"

namespace coop {

namespace {
constexpr Seconds kNever = std::numeric_limits<Seconds>::infinity();
constexpr int kFar = 64;            // ops around a storage, that are looked at for its sake
constexpr double kOwnWeight = 0.5;  // of the last time, in what is learned of one storage

// Outside, and somebody will want it.
bool waits(const Storage& storage) { return storage.transit == Transit::none && !storage.spare(); }
}  // namespace

void Engine::Road::measure(Bytes done, const Transfer& transfer) {
  constexpr double kWeight = 0.2, kRemembering = 0.95;
  const Seconds seconds = std::max(transfer.seconds, kShortest);
  rate += kWeight * (static_cast<double>(done) / seconds - rate);
  took = kRemembering * took + seconds;
  waited = kRemembering * waited + transfer.waited;
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
  transferring_ = true;
  out_.bytes += storage.bytes;
  price_swap(storage);
}

// Into a raw block.
void Engine::begin_in(Storage& storage, Block* block) {
  const std::uint32_t ticket = driver_.begin_in(storage.page, block->offset, storage.bytes, now_);
  carried_ += block->bytes;
  transfers_.push_back({ticket, &storage, block, Transit::in, 0, storage.bytes});
  storage.transit = Transit::in;
  in_.bytes += storage.bytes;
}

// Needed now.
void Engine::miss(Storage& storage) {
  if (storage.transit == Transit::none) {
    ++counts_.prefetch_misses;
    last_missed_ = storage.id;
    fetch(storage);
  }
  finish(storage, true);
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
  if (result.page) road.measure(done.bytes, result);
  now_ += result.waited;
  counts_.transfer_seconds += result.seconds;
  counts_.waited_seconds += result.waited;
  if (result.page) {
    ++(out ? counts_.swaps_out : counts_.swaps_in);
    (out ? counts_.swapped_out : counts_.swapped_in) += done.bytes;
  }
  if (!out || !done.storage) carried_ -= done.block->bytes;
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
    learn_lateness(storage, result);
    place(storage, done.block);
    --counts_.rematerialisations;  // nothing was run again
    if (!storage.producer) sources_ += storage.bytes;
    price_swap(storage);
  } else {  // it has to be recomputed, if it can be; else whoever needs it is told
    give_back(done.block);
    drop_page(storage);
    storage.lost = storage.source();
    lineage_.evicted(storage);
  }
  check_at_event();
  return true;
}

bool Engine::call_off(Storage& storage) {
  if (storage.transit != Transit::out) return false;
  Underway& transfer = underway(storage);
  if (!driver_.cancel(transfer.ticket)) return false;
  out_.bytes -= transfer.bytes;
  transfer = transfers_.back();
  transfers_.pop_back();
  storage.transit = Transit::none;
  storage.ahead = false;
  price_swap(storage);
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
  storage.ahead = false;
  refused_ = true;
}

// A storage has no block any more: it is outside, or has to be made again.
void Engine::left(Storage& storage) {
  if (storage.page) {
    if (foresees()) expect_use(storage);
    outside_.insert(&storage);
    look_again_ = 0;
  } else {
    lineage_.evicted(storage);
    if (foresees()) expect_need(storage);
  }
}

// Was it worth while to write it ahead?
void Engine::learn_use(Storage& storage, bool useful) {
  constexpr double kWeight = 0.05, kLeast = 0.1;
  if (!std::exchange(storage.ahead, false)) return;
  useful_ = std::max(useful_ + kWeight * (useful - useful_), kLeast);
  if (History::Lesson* own = history_.lesson(storage)) own->useful += kOwnWeight * (useful - own->useful);
}

void Engine::learn_lateness(Storage& storage, const Transfer& read) {
  History::Lesson* own = history_.lesson(storage);
  if (!own || !history_.known()) return;
  const double late = std::min(read.waited / std::max(read.seconds, kShortest), 1.0);
  own->late = own->late ? *own->late + kOwnWeight * (late - *own->late) : late;
}

void Engine::drop_page(Storage& storage) {
  learn_use(storage, false);
  if (!storage.page) return;
  outside_.erase(&storage);
  driver_.drop_page(std::exchange(storage.page, 0));
  room_outside_ = refused_;
}

// What the program notices of it: as much as the last times, or, if there were none, as of other storages. Where it waits now
// and then, the road is full, and it would wait for more than its share. In any case, what the ops beside it lose.
Seconds Engine::cost_of_reading(const Storage& storage) {
  constexpr double kMore = 3;
  const History::Lesson* own = history_.lesson(storage);
  const double late = own && own->late ? *own->late : kMore * in_.waited / in_.took;
  return in_.seconds(storage.bytes) * std::min(std::max(late, options_.swap_load), 1.0);
}

// What the program would wait for: until it has been written, if it were to leave now, and for some of its coming back.
void Engine::price_swap(Storage& storage) {
  if (!options_.swap || storage.bytes < options_.swap_least || storage.foreign) return;
  const Seconds cost = (storage.page ? 0 : out_.seconds(storage.bytes)) + cost_of_reading(storage);
  const bool less = cost < storage.swap_cost;
  storage.swap_cost = cost;
  if (less) got_cheaper(storage);
}

// Before these leave: where they take their bytes with them, those are outside afterwards, and no transfer is under way.
// False: one of them could not, and has to stay.
bool Engine::clean(std::span<Storage* const> leaving) {
  for (Storage* storage : leaving) {
    if (storage->page || !swaps(lineage_, *storage)) continue;
    begin_out(*storage);
    if (History::Lesson* own = history_.lesson(*storage)) own->useful = 1;  // it would have been
  }
  bool all = true;
  for (Storage* storage : leaving) {
    still(*storage);
    all = all && (storage->producer || storage->page);
  }
  return all;
}

// Begins to bring it back, whatever has to leave for it.
void Engine::fetch(Storage& storage) {
  if (storage.transit != Transit::none) return;
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
  storage.lost = true;
  if (storage.held) abandon(storage);
  storage.in_hand = false;
  throw Lost(
      "a tensor of " + std::to_string(storage.bytes) +
      " bytes that had been swapped out did not come back as it was, and it cannot be recomputed: its memory, or its "
      "file, was changed or could not be read. It is lost; the other tensors are not. Tip: go on from the last "
      "checkpoint, with another place to swap to");
}

void Engine::overwriting(std::span<Storage* const> written) {
  if (!transferring_) return;
  const Lock lock(mutex_);
  for (Storage* storage : written) {
    if (!call_off(*storage)) still(*storage);
    if (!storage->source()) continue;  // a page of what can be made again stays with the old version
    drop_page(*storage);
    price_swap(*storage);
  }
}

// --- ahead of the program ----------------------------------------------------------------------------------------------

// An op is about to use these, which may be absent.
void Engine::entering(std::span<Storage* const> inputs) {
  if (foresees() && !std::exchange(logged_, true)) history_.used(inputs, counts_.op_seconds);
  for (Storage* input : inputs) {
    if (std::exchange(input->fetched, false)) ++counts_.prefetch_hits;
    if (foresees()) expect_use(*input);
    price_swap(*input);  // speeds have changed, or the tier has room again
  }
}

// When it is used next: by the program, or to make again what the program uses then.
void Engine::expect_use(Storage& storage) {
  const Seconds ran = counts_.op_seconds;
  const auto sooner = [&](Seconds& time, Seconds other) {
    if (other > ran) time = time > ran ? std::min(time, other) : other;
  };
  const History::Next next = history_.next(storage);
  Seconds when = next.idle > 0 ? ran + next.idle : 0, due = next.used ? when : 0;
  int looks = storage.missed ? kFar : 0;
  for (const Edge* edge = storage.consumers; edge && looks-- > 0; edge = edge->next) {
    for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
      const Storage* made = edge->op->outputs()[i];
      if (!made || !made->missing) continue;
      sooner(when, made->next_use);
      sooner(due, made->due);
    }
  }
  set_next_use(storage, when, due);
}

// It has gone, and has to be made again when it is used: what it is made from is needed then.
void Engine::expect_need(Storage& storage) {
  const Seconds ran = counts_.op_seconds, when = storage.next_use, due = storage.due;
  if (!storage.missing || when <= ran) return;
  std::vector<const Op*> ops{storage.producer};
  for (int looks = kFar; looks-- > 0 && !ops.empty();) {
    const Op& op = *ops.back();
    ops.pop_back();
    for (std::uint32_t i = 0; i < op.inputs_count; ++i) {
      Storage& input = *op.inputs()[i].storage;
      if (input.foreign || (ran < input.next_use && input.next_use <= when)) continue;
      set_next_use(input, when, due > ran ? due : input.due);
      if (input.missing && input.producer) ops.push_back(input.producer);  // else it is lost
    }
  }
}

void Engine::set_next_use(Storage& storage, Seconds when, Seconds due) {
  const bool outside = storage.evicted() && outside_.erase(&storage);
  storage.next_use = when;
  storage.due = due;
  storage.foreseen = std::max(when - counts_.op_seconds, 0.0);  // rounded as it will be
  if (outside) {
    outside_.insert(&storage);
    look_again_ = 0;
  }
  if (storage.foreseen > 0) got_cheaper(storage);
}

// Between ops.
void Engine::tend_transfers(Seconds cost) {
  constexpr double kForgetting = 0.99;
  logged_ = false;
  longest_op_ = std::max(kForgetting * longest_op_, cost);
  finish_all(false);
  if (retired_) return;
  clean_ahead();
  prefetch();
}

// What a byte of it would be worth outside. A byte that is free for a second is worth what searches have paid for it, and no
// more than waiting until it is written would cost, or making it again, which takes a walk to find out.
double Engine::worth_outside(Storage& storage, bool with_walk) {
  const auto bytes = static_cast<double>(storage.bytes);
  const Seconds writing = out_.seconds(storage.bytes), reading = cost_of_reading(storage);
  Seconds value = std::min(price_ * bytes * storage.idle(now_, counts_.op_seconds), writing + reading);
  if (with_walk && storage.producer) value = std::min(value, lineage_.projected_cost(storage));
  const History::Lesson* own = history_.lesson(storage);
  return ((own ? own->useful : useful_) * (value - reading) - options_.swap_load * writing) / bytes;
}

// What is worth the most outside is written now, so that it can leave at once when there is need.
void Engine::clean_ahead() {
  constexpr Seconds kAhead = 0.01;  // of writing, at a time
  constexpr double kWorthwhile = 2;
  constexpr Bytes kNews = 64;  // part of the budget that has changed since the last time
  if (out_.bytes || price_ <= 0 || news_ < options_.budget / kNews) return;
  news_ = 0;
  worthy_.clear();
  for (Block* block = arena_.first(); block; block = block->next) {
    Storage* storage = block->storage;
    if (!storage || !storage->evictable(false) || storage->page || !storage->swappable() || storage->spare()) continue;
    if (const double worth = worth_outside(*storage, false); worth > 0) worthy_.push_back({worth, storage, false});
  }
  std::make_heap(worthy_.begin(), worthy_.end());
  while (!worthy_.empty() && out_.seconds(out_.bytes) < kAhead) {
    std::pop_heap(worthy_.begin(), worthy_.end());
    Worthy& best = worthy_.back();
    if (!std::exchange(best.exact, true)) {  // it may be worth less
      best.worth = worth_outside(*best.storage, true);
      best.worth > 0 ? std::push_heap(worthy_.begin(), worthy_.end()) : worthy_.pop_back();
      continue;
    }
    Storage& storage = *best.storage;
    worthy_.pop_back();
    // It has to be outside and back before it is used, and be of use in between.
    const Seconds away = out_.seconds(out_.bytes + storage.bytes) + in_.seconds(storage.bytes);
    if (storage.idle(now_, counts_.op_seconds) <= kWorthwhile * away) continue;
    begin_out(storage);
    storage.ahead = storage.transit == Transit::out;
  }
}

// What is used soon is read now, in the order in which it is used, as far as there is room for it.
void Engine::prefetch() {
  if (outside_.empty()) return;
  if (history_.known()) {
    constexpr int kMost = 8;  // at a time
    const Seconds ran = counts_.op_seconds;
    for (int i = 0; i < kMost && ran >= look_again_; ++i) {
      const auto first =
          std::find_if(outside_.begin(), outside_.end(), [](const Storage* storage) { return waits(*storage); });
      if (first != outside_.end() && 0 < (*first)->due && (*first)->due <= ran) {  // the program has done other things
        expect_use(**first);
        continue;
      }
      look_again_ = latest_fetch();
      if (ran < look_again_ || first == outside_.end() || !fetch_ahead(**first)) return;
    }
  } else if (last_missed_) {
    // A backward pass wants what was made before what it has just wanted.
    Storage* found = nullptr;
    for (Storage* storage : outside_) {
      if (waits(*storage) && storage->id < last_missed_ && (!found || storage->id > found->id)) found = storage;
    }
    if (found && fetch_ahead(*found)) last_missed_ = found->id;
  }
}

// When the next has to be on its way, so that each is there in time, one after the other.
Seconds Engine::latest_fetch() const {
  constexpr double kMargin = 1.25, kOps = 2;
  Seconds on_the_way = in_.seconds(in_.bytes), latest = kNever;
  for (const Storage* storage : outside_) {
    if (storage->due == 0) break;
    if (!waits(*storage)) continue;
    on_the_way += in_.seconds(storage->bytes);
    latest = std::min(latest, storage->due - kMargin * on_the_way - kOps * longest_op_);  // it begins between two ops
    if (latest <= counts_.op_seconds) break;
  }
  return latest;
}

// False: not now.
bool Engine::fetch_ahead(Storage& storage) {
  constexpr Bytes kInFlight = 8;  // part of the budget, at most
  if (in_.bytes && in_.bytes + storage.bytes > options_.budget / kInFlight) return false;
  // What waits for its turn is in the way meanwhile. There has to be enough on the road until the next op ends.
  if (in_.bytes && in_.seconds(in_.bytes) > longest_op_) return false;
  Block* block = room_for(storage);
  if (!block) return false;
  raw_ += block->bytes;
  note(EventKind::place, nullptr, block->offset, block->bytes);
  storage.fetched = true;
  begin_in(storage, block);
  note_use();
  return true;
}

// A hole, or the place of storages that can leave at once and are used later.
Block* Engine::room_for(const Storage& storage) {
  if (Block* hole = arena_.allocate(storage.bytes, Side::low)) return hole;
  if (!history_.known()) return nullptr;
  const Bytes needed = arena_.round(storage.bytes);
  Scene scene = this->scene(Side::low);
  const Run run = policy_->choose(scene, needed);
  if (!run.first) return nullptr;
  Bytes gain = 0;
  for (const Block* beside : {run.first->prev, run.last->next}) {
    if (beside && beside->state == Block::State::free) gain += beside->bytes;
  }
  for (Block* block = run.first;; block = block->next) {
    gain += block->bytes;
    if (const Storage* there = block->storage) {
      const bool later = there->spare() || (there->page && there->next_use > storage.due);
      if (!later || there->transit != Transit::none || stays(scene, *block->storage)) return nullptr;
    }
    if (block == run.last) break;
  }
  if (gain < needed) return nullptr;  // a policy that takes one at a time
  Block* hole = clear(run, scene);
  return hole && hole->bytes >= needed ? arena_.take(hole, needed, Side::low) : nullptr;
}

}  // namespace coop
