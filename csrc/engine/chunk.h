// Neighbouring blocks, a dozen or so, and what a window costs at least that has a part of them: a search passes over
// those where nothing is cheap enough.
//
// What leaves or is moved makes room for its own bytes, if it leaves, and opens the holes beside it. A window is no cheaper
// per byte than the cheapest of its storages by that measure: each of its bytes is counted at least once.
//
// The bounds only have to be on the safe side. A storage lowers them when it comes, when it gets cheaper and when a hole
// opens beside it; nothing raises them but a search that walks over the blocks anyway.
#pragma once

#include <algorithm>
#include <limits>

#include "engine/storage.h"

namespace coop {

// Of scores per byte, over some storages that can leave.
struct Bound {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  // Up to a time not far away, each storage with its own age: no score per byte is below this.
  Seconds until = 0;
  double rate = kNone;
  // After that: no cost per byte is below this, no storage was used before, and none will be idle for longer than that.
  double density = kNone;
  Seconds oldest = kNone;
  Seconds longest = 0;

  // `ahead`: how long the storage will be idle as far as is known, seen from any time that has passed.
  void add(double cost_per_byte, Seconds last_access, Seconds ahead) {
    rate = std::min(rate, cost_per_byte / std::max({until - last_access, ahead, kShortest}));
    density = std::min(density, cost_per_byte);
    oldest = std::min(oldest, last_access);
    longest = std::max(longest, ahead);
  }
  void add(const Bound& other) {
    until = std::min(until, other.until);
    rate = std::min(rate, other.rate);
    density = std::min(density, other.density);
    oldest = std::min(oldest, other.oldest);
    longest = std::max(longest, other.longest);
  }
  double at(Seconds now) const { return now <= until ? rate : density / std::max({now - oldest, longest, kShortest}); }
};

struct Chunk {
  static constexpr std::uint32_t kMost = 16;

  Chunk* next = nullptr;  // neighbours in address order
  Chunk* prev = nullptr;
  Block* first = nullptr;
  std::uint32_t blocks = 0;
  Bound own;                     // by the storages' own costs
  Bound known;                   // by projected costs, where they were known
  std::uint64_t epoch = 0;       // `known` holds as long as this is the lineage's
  double moving = Bound::kNone;  // bytes that are moved for each byte that this opens, at least

  const Bound& bound(std::uint64_t now) const { return epoch == now ? known : own; }

  // The block has got a storage, or that has got cheaper, or a hole beside it larger.
  void note(const Block& block) {
    if (block.storage) note_ahead(block, block.storage->outlook.idle);
  }
  // The same, `ahead` being how long the storage will be idle as far as is known.
  void note_ahead(const Block& block, Seconds ahead) {
    if (const Storage* storage = block.storage) note(block, storage->leaving_cost(storage->cost), ahead, nullptr);
  }
  void add(const Chunk& other) {
    own.add(other.own);
    known.add(other.known);
    if (epoch != other.epoch) epoch = 0;
    moving = std::min(moving, other.moving);
  }

  // All bounds as they are. `cost_of` tells what is known of a storage's projected cost. Returns the rate at this moment.
  template <typename CostOf>
  double look_again(const Clock& clock, std::uint64_t in_epoch, CostOf cost_of) {
    const Seconds now = clock.now, oldest = own.oldest;
    own = known = {.until = oldest < now ? now + (now - oldest) / 64 : now};
    epoch = in_epoch;
    moving = Bound::kNone;
    Bound at_once{.until = now};
    const Block* block = first;
    for (std::uint32_t i = 0; i < blocks; ++i, block = block->next) {
      if (const Storage* storage = block->storage) {
        const Seconds ahead = std::max(storage->outlook.next_use - clock.ran, 0.0);
        note(*block, storage->leaving_cost(storage->producer ? cost_of(*storage) : 0), ahead, &at_once);
      }
    }
    return at_once.rate;
  }

 private:
  // What waiting ops will read counts as if none waited, and is priced at more than a second.
  void note(const Block& block, Seconds cost, Seconds ahead, Bound* also) {
    const Bytes holes = block.free_beside();
    if (holes) moving = std::min(moving, static_cast<double>(block.bytes) / static_cast<double>(holes));
    const Storage& storage = *block.storage;
    if (!storage.producer && !storage.swappable()) return;
    const bool droppable = storage.producer && !storage.held && !storage.price.missed;
    const auto per_byte = [&](Seconds seconds) {
      return droppable ? 0 : std::min(seconds, 1.0) / static_cast<double>(block.bytes + holes);
    };
    own.add(per_byte(storage.leaving_cost(storage.cost)), storage.last_access, ahead);
    known.add(per_byte(cost), storage.last_access, ahead);
    if (also) also->add(per_byte(cost), storage.last_access, ahead);
  }
};

inline void got_cheaper(const Storage& storage) {
  if (storage.block) storage.block->chunk->note(*storage.block);
}

}  // namespace coop
