#include "engine/transfers.h"

#include <algorithm>
#include <utility>

#include "engine/lineage.h"
#include "engine/search.h"

namespace coop {

void Link::measure(Bytes done, const Transfer& transfer) {
  constexpr double kWeight = 0.2, kRemembering = 0.95;
  const Seconds seconds = std::max(transfer.seconds, kShortest);
  rate += kWeight * (static_cast<double>(done) / seconds - rate);
  took = kRemembering * took + seconds;
  waited = kRemembering * waited + transfer.waited;
}

Transfers::Transfers(const Options& options, Driver& driver, Gate& gate, Clock& clock, Arena& arena, Ledger& ledger,
                     Journal& journal, Cost& cost, Forecast& forecast, Blocks& blocks, Checks& checks, Stats& counts)
    : options_(options),
      driver_(driver),
      gate_(gate),
      clock_(clock),
      arena_(arena),
      ledger_(ledger),
      journal_(journal),
      cost_(cost),
      forecast_(forecast),
      blocks_(blocks),
      checks_(checks),
      counts_(counts),
      out_{options.swap_out},
      in_{options.swap_in} {}

// --- one transfer ------------------------------------------------------------------------------------------------------

Transfers::Underway& Transfers::of(const Storage& storage) {
  return *std::find_if(underway_.begin(), underway_.end(), [&](const Underway& t) { return t.storage == &storage; });
}

void Transfers::begin_out(Storage& storage) {
  if (storage.copy.page || storage.copy.transit != Transit::none) return;
  const std::uint32_t ticket = driver_.begin_out(storage.block->offset, storage.bytes, clock_.now);
  if (!ticket) return refused(storage);
  underway_.push_back({ticket, &storage, storage.block, Transit::out, 0, storage.bytes});
  storage.copy.transit = Transit::out;
  ever_ = true;
  out_.bytes += storage.bytes;
  journal_.explain(EventKind::write, &storage, storage.block);
  reprice(storage);
}

void Transfers::begin_in(Storage& storage, Block* block) {
  const std::uint32_t ticket = driver_.begin_in(storage.copy.page, block->offset, storage.bytes, clock_.now);
  ledger_.carry(block->bytes);
  underway_.push_back({ticket, &storage, block, Transit::in, 0, storage.bytes});
  storage.copy.transit = Transit::in;
  in_.bytes += storage.bytes;
  journal_.explain(EventKind::read, &storage, block);
}

// Waits with the lock open. Another thread that waits for the same transfer may finish it first.
// True: no other thread has been in the engine.
bool Transfers::wait(std::uint32_t ticket) {
  const Seconds now = clock_.now;
  const bool disturbed = gate_.open_while([&] { driver_.wait(ticket, now); });
  const auto found =
      std::find_if(underway_.begin(), underway_.end(), [&](const Underway& t) { return t.ticket == ticket; });
  if (found != underway_.end()) finish(*found);
  return !disturbed;
}

bool Transfers::wait_for(Storage& storage) {
  bool alone = true;
  while (storage.copy.transit != Transit::none) {
    ++storage.claims.pins;
    alone = wait(of(storage).ticket) && alone;
    --storage.claims.pins;
  }
  return alone;
}

// False: the transfer is not done yet.
bool Transfers::finish(Underway& transfer) {
  const Transfer result = driver_.finish(transfer.ticket, clock_.now);
  if (!result.done) return false;
  const Underway done = std::exchange(transfer, underway_.back());
  underway_.pop_back();
  const bool out = done.direction == Transit::out;
  Link& link = out ? out_ : in_;
  link.bytes -= done.bytes;
  if (result.page) link.measure(done.bytes, result);
  clock_.now += result.waited;
  counts_.transfer_seconds += result.seconds;
  counts_.waited_seconds += result.waited;
  if (result.page) {
    ++(out ? counts_.swaps_out : counts_.swaps_in);
    (out ? counts_.swapped_out : counts_.swapped_in) += done.bytes;
    if (out) {
      journal_.note(EventKind::out, done.storage, done.block->offset, done.block->bytes, result.seconds, result.waited);
    }
  }
  if (!out || !done.storage) ledger_.carried(done.block->bytes);
  if (!done.storage) {
    blocks_.give_back(done.block);
    if (const std::uint32_t page = out ? result.page : done.page) driver_.drop_page(page);
    room_outside_ = refused_;
    return true;
  }
  Storage& storage = *done.storage;
  storage.copy.transit = Transit::none;
  if (out) {
    storage.copy.page = result.page;
    result.page ? reprice(storage) : refused(storage);
  } else if (result.page) {
    forecast_.learn_from_read(storage, std::min(result.waited / std::max(result.seconds, kShortest), 1.0));
    blocks_.restore(storage, done.block, &result);
    reprice(storage);
  } else {  // recompute it if possible; else the op that needs it fails
    blocks_.give_back(done.block);
    drop_copy(storage);
    storage.copy.lost = storage.source();
    cost_.evicted(storage);
  }
  checks_.at_event();
  return true;
}

bool Transfers::cancel(Storage& storage) {
  if (storage.copy.transit != Transit::out) return false;
  Underway& transfer = of(storage);
  if (!driver_.cancel(transfer.ticket)) return false;
  out_.bytes -= transfer.bytes;
  transfer = underway_.back();
  underway_.pop_back();
  storage.copy.transit = Transit::none;
  forecast_.wrote_ahead(storage, false);
  reprice(storage);
  return true;
}

// --- all of them -------------------------------------------------------------------------------------------------------

void Transfers::finish_done() {
  for (std::size_t i = 0; i < underway_.size();) {
    if (!finish(underway_[i])) ++i;  // else the last one has taken its place
  }
}

void Transfers::finish_all() {
  while (!underway_.empty()) wait(underway_.front().ticket);
}

// --- copies ------------------------------------------------------------------------------------------------------------

Transfers::Written Transfers::write_back(std::span<Storage* const> leaving, Lineage& lineage) {
  for (Storage* storage : leaving) {
    if (storage->copy.page || !leaves_with_bytes(cost_, *storage)) continue;
    begin_out(*storage);
    forecast_.should_have_been_written(*storage);
  }
  bool alone = true, all = true;
  for (Storage* storage : leaving) ++storage->claims.pins;
  for (Storage* storage : leaving) {
    alone = wait_for(*storage) && alone;
    all = all && (storage->producer || storage->copy.page);
  }
  for (Storage* storage : leaving) --storage->claims.pins;
  if (!alone) {
    for (Storage* storage : leaving) lineage.reconsider(*storage);  // some may have been dropped meanwhile
  }
  return !alone ? Written::disturbed : all ? Written::yes : Written::refused;
}

// The tier does not take the storage. It is offered again after its next use, or when the tier has
// room again.
void Transfers::refused(Storage& storage) {
  storage.copy.cost = kNever;
  forecast_.wrote_ahead(storage, false);
  refused_ = true;
}

void Transfers::drop_copy(Storage& storage) {
  forecast_.learn_from_write(storage, false);
  if (!storage.copy.page) return;
  forecast_.not_outside(storage);
  driver_.drop_page(std::exchange(storage.copy.page, 0));
  room_outside_ = refused_;
}

void Transfers::hand_over(Storage& storage, Storage& old) {
  old.copy.page = std::exchange(storage.copy.page, 0);
  forecast_.wrote_ahead(storage, false);
}

void Transfers::overwriting(std::span<Storage* const> written) {
  for (Storage* storage : written) {
    if (!cancel(*storage)) wait_for(*storage);
    if (!storage->source()) continue;  // the old version keeps the copy
    drop_copy(*storage);
    reprice(*storage);
  }
}

void Transfers::forget(Storage& storage) {
  if (storage.copy.transit == Transit::in) {  // the page is dropped when it has been read
    forecast_.not_outside(storage);
    Underway& transfer = of(storage);
    transfer.page = std::exchange(storage.copy.page, 0);
    transfer.storage = nullptr;
  }
  drop_copy(storage);
}

bool Transfers::keep_block(Storage& storage) {
  if (storage.copy.transit != Transit::out || cancel(storage)) return false;
  of(storage).storage = nullptr;
  storage.copy.transit = Transit::none;
  Block* block = blocks_.make_raw(storage);
  ledger_.carry(block->bytes);
  journal_.note(EventKind::place, *block);
  return true;
}

// --- prices ------------------------------------------------------------------------------------------------------------

// The share of the reading time that the program waited for in earlier steps; if there were none,
// three times the share for all storages: if the program waits at all, the link is saturated, and
// one more read costs more than the mean. At least what the ops beside the transfer lose.
Seconds Transfers::cost_of_reading(const Storage& storage) {
  constexpr double kMore = 3;
  const std::optional<double> own = forecast_.late(storage);
  const double late = own ? *own : kMore * in_.waited / in_.took;
  return in_.seconds(storage.bytes) * std::min(std::max(late, options_.swap_load), 1.0);
}

void Transfers::reprice(Storage& storage) {
  if (!options_.swap || storage.bytes < options_.swap_least || storage.foreign) return;
  const Seconds cost = (storage.copy.page ? 0 : out_.seconds(storage.bytes)) + cost_of_reading(storage);
  const bool less = cost < storage.copy.cost;
  storage.copy.cost = cost;
  if (less) got_cheaper(storage);
}

bool Transfers::retry_refused() {
  if (!std::exchange(room_outside_, false)) return false;
  refused_ = false;
  for (Block* block = arena_.first(); block; block = block->next) {
    if (block->storage) reprice(*block->storage);
  }
  return true;
}

}  // namespace coop
