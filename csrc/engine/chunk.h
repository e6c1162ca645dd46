// A chunk: up to 16 neighbouring blocks, with a lower bound on what a window costs that contains
// one of them. A search skips the chunks whose bound is above the best window so far.
//
// A storage that leaves gains its own bytes and the holes beside it; one that is moved aside, only
// the holes. Divide the storage's cost by these bytes: a window is no cheaper per byte than the
// cheapest of its storages, because each byte of the window is counted at least once.
//
// The bounds may be too low, never too high. A storage lowers them when it arrives, when it gets
// cheaper and when a hole beside it grows. Only a search that visits the blocks anyway raises them.
#pragma once

#include <algorithm>
#include <limits>

#include "engine/storage.h"

namespace coop {

// A lower bound on the scores per byte of some storages that can leave.
struct Bound {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  // Until this time no score per byte is below `rate`, where each storage has its own idle time.
  Seconds until = 0;
  double rate = kNone;
  // After that time: no cost per byte is below `density`, no storage was last used before `oldest`,
  // and none is known to be idle for longer than `longest`.
  double density = kNone;
  Seconds oldest = kNone;
  Seconds longest = 0;

  // `ahead`: for how long the storage is known to be idle from now on, or from some time in the
  // past.
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
  Bound own;                     // from the storages' own costs
  Bound known;                   // from projected costs, where they were known
  std::uint64_t epoch = 0;       // `known` is valid while this equals Cost's epoch
  double moving = Bound::kNone;  // a lower bound: bytes moved for each byte of hole gained

  const Bound& bound(std::uint64_t now) const { return epoch == now ? known : own; }

  // The block has a new storage, its storage is cheaper, or a hole beside it is larger.
  void note(const Block& block) {
    if (block.storage) note_ahead(block, block.storage->outlook.idle);
  }
  // The same, for a storage that is known to be idle for `ahead`.
  void note_ahead(const Block& block, Seconds ahead) {
    if (const Storage* storage = block.storage) note(block, storage->leaving_cost(storage->cost), ahead, nullptr);
  }
  void add(const Chunk& other) {
    own.add(other.own);
    known.add(other.known);
    if (epoch != other.epoch) epoch = 0;
    moving = std::min(moving, other.moving);
  }

  // Computes all bounds anew. `cost_of` returns what is known of a storage's projected cost.
  // Returns the rate at this moment.
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
  // A wanted storage counts as if no op waited for it. Costs are capped at one second, so that the
  // bound stays below the real score of a wanted storage: at least one second, divided by
  // kShortest.
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
