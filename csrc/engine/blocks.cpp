#include "engine/blocks.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace coop {

// --- raw blocks --------------------------------------------------------------------------------------------------------

void Blocks::handed_out(Block& block) {
  footprint_.take(block);
  ledger_.count();
  journal_.note(EventKind::place, block);
}

void Blocks::give_back(Block* block) {
  spoil(block->offset, block->bytes);
  footprint_.give_back(*block);
  journal_.note(EventKind::free, *block);
  arena_.release(block);
}

// --- storages ----------------------------------------------------------------------------------------------------------

void Blocks::bind(Storage& storage, Block* block) {
  const Ledger::Change change(ledger_, storage);
  arena_.occupy(block, &storage);
  storage.block = block;
}

void Blocks::restore(Storage& storage, Block* block, const Transfer* read) {
  if (storage.copy.page) forecast_.not_outside(storage);
  bind(storage, block);
  storage.last_access = clock_.now;
  cost_.restored(storage);
  if (checks_.level() >= 2 && storage.digest && storage.defined() &&
      driver_.digest(block->offset, storage.bytes) != storage.digest) {
    checks_.broken("rule 4: a storage came back with other bytes");
  }
  if (read) {
    journal_.note(EventKind::in, storage, read->seconds, read->waited);
  } else {
    ++counts_.rematerialisations;
    journal_.note(EventKind::restore, storage);
  }
  if (storage.held) {
    held_absent_.erase(&storage);
    driver_.attach(storage);
    trails_.consider(storage);
  }
}

Block* Blocks::evict(Storage& storage) {
  if (!storage.producer && !storage.copy.page) {
    throw std::logic_error("rule 2: a source would leave without its bytes");
  }
  if (checks_.level() >= 2 && storage.defined()) {
    storage.digest = driver_.digest(storage.block->offset, storage.bytes);
  }
  if (storage.held) {
    driver_.detach(storage);
    held_absent_.insert(&storage);
    ++counts_.evictions;
    counts_.evicted_bytes += storage.bytes;
  }
  journal_.note(EventKind::evict, storage);
  forecast_.leaves(storage);
  Block* hole = free(storage);
  became_absent(storage);
  return hole;
}

void Blocks::evict_early(Storage& storage) {
  if (!storage.uses || !storage.producer || !storage.evictable()) return;
  journal_.note(EventKind::evict, storage);
  free(storage);
  became_absent(storage);
}

void Blocks::became_absent(Storage& storage) {
  if (!storage.copy.page) cost_.evicted(storage);
  forecast_.became_absent(storage);
}

Block* Blocks::free(Storage& storage) {
  Block* block = nullptr;
  {
    const Ledger::Change change(ledger_, storage);
    block = std::exchange(storage.block, nullptr);
  }
  spoil(block->offset, block->bytes);
  return arena_.release(block);
}

Block* Blocks::make_raw(Storage& storage) {
  Block* block = nullptr;
  {
    const Ledger::Change change(ledger_, storage);
    block = std::exchange(storage.block, nullptr);
  }
  arena_.vacate(block);
  return block;
}

void Blocks::pass_on(Storage& from, Storage& to) {
  const Ledger::Change one(ledger_, from), other(ledger_, to);
  to.block = std::exchange(from.block, nullptr);
  to.block->storage = &to;
  got_cheaper(to);
}

void Blocks::let_go_absent(Storage& storage) {
  held_absent_.erase(&storage);
  cost_.unheld(storage);
}

// --- moves -------------------------------------------------------------------------------------------------------------

Block* Blocks::slide(Storage& storage) {
  const Bytes from = storage.block->offset;
  Block* hole = arena_.slide_down(storage.block);
  moved(storage, from);
  return hole;
}

void Blocks::lower(Storage& storage) {
  Block* hole = storage.movable() ? arena_.allocate(storage.bytes, Side::low) : nullptr;
  if (!hole) return;
  Block* before = storage.block;
  if (hole->offset < before->offset) {
    arena_.occupy(hole, &storage);
    storage.block = hole;
    moved(storage, before->offset);
    arena_.release(before);
  } else {
    arena_.release(hole);
  }
}

void Blocks::moved(Storage& storage, Bytes from) {
  counts_.move_seconds += driver_.copy(storage.block->offset, from, storage.bytes);
  if (const Bytes end = storage.block->offset + storage.bytes; storage.block->offset < from) {
    spoil(std::max(end, from), from + storage.bytes - std::max(end, from));
  }
  if (storage.held) driver_.attach(storage);
  ++counts_.moves;
  counts_.moved_bytes += storage.bytes;
  journal_.note(EventKind::move, storage, static_cast<double>(from));
}

}  // namespace coop
