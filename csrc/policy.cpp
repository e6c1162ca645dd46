// Coop's window (NeurIPS 2023, section 3) and the one-at-a-time policies: DTR (ICLR 2021), DTE (MegTaiChi, 2022), LRU.
//
// Coop's score of a storage is c / s: projected cost over staleness. What differs from the authors' code: every window is
// shrunk from the left before it is compared, the last one too; a staleness of zero is a small number instead of a
// division by zero; cost is per byte of the window (Options::per_byte), because the sum alone prefers small dear results;
// storages nobody holds cost nothing; a source in the way is a wall only if it is locked or dearer to move than the
// window next to it.
#include "policy.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace coop {
namespace {

constexpr Seconds kShortest = 1e-9;  // below the cost of any op: keeps scores finite

Seconds staleness(const Scene& scene, const Storage& storage) {
  return std::max(scene.now - storage.last_access, kShortest);
}

double score(Scene& scene, Storage& storage) {
  if (!storage.held) return 0;
  return scene.lineage.projected_cost(storage) / staleness(scene, storage);
}

class Coop final : public Policy {
 public:
  Run choose(Scene& scene, Bytes needed) override { return cheapest_window(scene, needed, scene.options.move); }
};

// Evicts the storage of least score, one at a time.
template <typename Score>
class Single final : public Policy {
 public:
  Run choose(Scene& scene, Bytes) override {
    Block* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (Block* block = scene.arena.first(); block; block = block->next) {
      if (!block->storage || !block->storage->evictable()) continue;
      const double value = Score::of(scene, *block);
      if (value < least || !best) {
        least = value;
        best = block;
      }
    }
    return {best, best};
  }
};

struct Dtr {
  static double of(Scene& scene, Block& block) {
    return score(scene, *block.storage) / static_cast<double>(block.bytes);
  }
};

struct Dte {
  static double of(Scene& scene, Block& block) {
    const auto free_bytes = [](const Block* next) {
      return next && next->state == Block::State::free ? next->bytes : 0;
    };
    const Bytes together = block.bytes + free_bytes(block.prev) + free_bytes(block.next);
    return score(scene, *block.storage) / static_cast<double>(together);
  }
};

struct Lru {
  static double of(Scene&, Block& block) { return block.storage->held ? block.storage->last_access : -1; }
};

// Scratch that keeps its memory from one search to the next.
template <typename Item>
std::vector<Item>& scratch() {
  thread_local std::vector<Item> items;
  items.clear();
  return items;
}

}  // namespace

std::unique_ptr<Policy> make_policy(const Options& options) {
  switch (options.policy) {
    case PolicyKind::dtr: return std::make_unique<Single<Dtr>>();
    case PolicyKind::dte: return std::make_unique<Single<Dte>>();
    case PolicyKind::lru: return std::make_unique<Single<Lru>>();
    case PolicyKind::coop: break;
  }
  if (!options.window) return std::make_unique<Single<Dte>>();
  return std::make_unique<Coop>();
}

// Two pointers in address order. `gain` counts the bytes the request could use; what must be slid aside adds to the cost
// only. Raw and locked blocks cut the window. Only minimal windows are compared. Sums are long double: adding and
// subtracting scores of very different size must not leave dust behind that decides a comparison.
Run cheapest_window(Scene& scene, Bytes needed, bool may_move) {
  const Seconds horizon = std::max(scene.staleness, kShortest);
  struct Item {
    Block* block;
    double cost;
    Bytes gain;
  };
  Seconds stale_sum = 0;
  std::size_t stale_count = 0;
  const auto weigh = [&](Block* block, Item& item) {
    item = {block, 0, block->bytes};
    if (block->state == Block::State::free) return true;
    Storage* storage = block->storage;
    if (!storage) return false;
    if (storage->evictable()) {
      item.cost = score(scene, *storage);
      stale_sum += staleness(scene, *storage);
      ++stale_count;
      return true;
    }
    if (!may_move || !storage->movable()) return false;
    item.cost = static_cast<double>(block->bytes) / scene.options.copy_bandwidth / horizon;
    item.gain = 0;
    return true;
  };

  Run best;
  long double least = std::numeric_limits<long double>::infinity();
  std::vector<Item>& window = scratch<Item>();
  std::size_t left = 0;  // the window is what lies behind this index
  long double cost = 0;
  Bytes gain = 0;
  for (Block* block = scene.arena.first(); block; block = block->next) {
    Item item;
    if (!weigh(block, item)) {
      window.clear();
      left = 0;
      cost = 0;
      gain = 0;
      continue;
    }
    window.push_back(item);
    cost += item.cost;
    gain += item.gain;
    while (gain >= needed) {
      const Item& out = window[left];
      if (gain - out.gain < needed) {  // cannot shrink further: a minimal window
        const long double whole = std::max(cost, 0.0L);
        const long double value = scene.options.per_byte ? whole / static_cast<long double>(gain) : whole;
        if (value < least) {
          least = value;
          best = {out.block, block};
        }
      }
      cost -= out.cost;
      gain -= out.gain;
      ++left;
    }
  }
  if (stale_count) scene.staleness = stale_sum / static_cast<double>(stale_count);
  return best;
}

Bytes largest_run(const Arena& arena, bool may_move) {
  Bytes most = 0, run = 0;
  for (const Block* block = arena.first(); block; block = block->next) {
    const Storage* storage = block->storage;
    if (block->state == Block::State::free || (storage && storage->evictable())) {
      run += block->bytes;
      most = std::max(most, run);
    } else if (!may_move || !storage || !storage->movable()) {
      run = 0;
    }
  }
  return most;
}

}  // namespace coop
