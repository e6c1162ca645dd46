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

// Dearer than anything that nobody waits for; and the deeper, the dearer: where so much is missing, an activation is
// recomputed from the layer below, but a gradient from the whole network.
double score_of_wanted(const Storage& storage) { return (1.0 + storage.producer->depth) / kShortest; }

double score(Scene& scene, Storage& storage) {
  if (storage.wanted) return score_of_wanted(storage);
  if (storage.spare()) return 0;
  return scene.lineage.projected_cost(storage) / staleness(scene, storage);
}

// Scratch that keeps its memory from one search to the next.
template <typename Item>
std::vector<Item>& scratch() {
  thread_local std::vector<Item> items;
  items.clear();
  return items;
}

// A walk over all blocks waits for memory at every step, for a kernel has used the caches since the last one. So it
// remembers its way, and the next walk asks early for what lies ahead. A wrong guess does no harm.
class Trail {
 public:
  void pass(Block* block) {
    if (at_ + kAhead < way().size()) {
      __builtin_prefetch(way()[at_ + kAhead].first);
      __builtin_prefetch(way()[at_ + kAhead].second);
    }
    if (at_ == way().size()) way().emplace_back();
    way()[at_++] = {block, block->storage};
  }

 private:
  static constexpr std::size_t kAhead = 8;
  static std::vector<std::pair<const Block*, const Storage*>>& way() {
    thread_local std::vector<std::pair<const Block*, const Storage*>> way;
    return way;
  }
  std::size_t at_ = 0;
};

// Storages that nobody holds cost nothing: most requests are met by them. They are looked for near the place where the
// last were found, from the end of the arena that the request belongs to inwards, and not far: a few blocks.
Run free_window(Scene& scene, Bytes needed) {
  constexpr int kFar = 64;
  const bool up = scene.side == Side::low;
  Block* start = nullptr;
  Block* block = scene.arena.mark(scene.side);
  Bytes gain = 0;
  for (int i = 0; i < kFar && block; ++i, block = up ? block->next : block->prev) {
    const Storage* storage = block->storage;
    if (block->state != Block::State::free && !(storage && storage->spare() && storage->evictable())) {
      start = nullptr;
      gain = 0;
      continue;
    }
    if (!start) start = block;
    gain += block->bytes;
    if (gain < needed) continue;
    while (gain - start->bytes >= needed) {
      gain -= start->bytes;
      start = up ? start->next : start->prev;
    }
    scene.arena.set_mark(scene.side, block);
    return up ? Run{start, block} : Run{block, start};
  }
  return {};
}

class Coop final : public Policy {
 public:
  Run choose(Scene& scene, Bytes needed) override {
    if (scene.options.keep_dead) {
      if (const Run run = free_window(scene, needed); run.first) return run;
    }
    const Run run = cheapest_window(scene, needed, scene.options.move);
    if (run.first) scene.arena.set_mark(scene.side, scene.side == Side::low ? run.first : run.last);
    return run;
  }
};

// Evicts the storage of least score, one at a time.
template <typename Score>
class Single final : public Policy {
 public:
  Run choose(Scene& scene, Bytes) override {
    Block* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (Block* block = scene.arena.first(); block; block = block->next) {
      if (!block->storage || !block->storage->evictable(scene.wanted_too)) continue;
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
  static double of(Scene&, Block& block) { return block.storage->spare() ? -1 : block.storage->last_access; }
};

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
// only. Raw and locked blocks cut the window. Only minimal windows are compared. Scores are added and never subtracted:
// those of very different size would leave dust behind that decides a comparison.
//
// Projected costs are dear to find, so the windows are first compared by what they cost at least, each storage alone.
// The best of them is then priced in full, and after it only those that might still be cheaper: the result is the same
// as if all had been.
Run cheapest_window(Scene& scene, Bytes needed, bool may_move) {
  const Seconds horizon = std::max(scene.staleness, kShortest);
  struct Item {
    Block* block;
    double cost;  // at least
    Bytes gain;
    bool priced;  // in full
  };
  struct Window {
    std::size_t first, last;  // items
    double value;             // at least
  };
  std::vector<Item>& items = scratch<Item>();
  std::vector<Window>& windows = scratch<Window>();
  Seconds stale_sum = 0;
  std::size_t stale_count = 0;
  const auto weigh = [&](Block* block, Item& item) {
    item = {block, 0, block->bytes, true};
    if (block->state == Block::State::free) return true;
    Storage* storage = block->storage;
    if (!storage) return false;
    if (storage->evictable(scene.wanted_too)) {
      const Seconds stale = staleness(scene, *storage);
      stale_sum += stale;
      ++stale_count;
      if (storage->wanted) {
        item.cost = score_of_wanted(*storage);
      } else if (!storage->spare()) {
        item.cost = storage->cost / stale;
        item.priced = false;
      }
      return true;
    }
    if (!may_move || storage->locks) return false;
    item.cost = static_cast<double>(block->bytes) / scene.options.copy_bandwidth / horizon;
    item.gain = 0;
    return true;
  };
  const auto value_of = [&](long double cost, Bytes gain) {
    const long double whole = std::max(cost, 0.0L);
    return static_cast<double>(scene.options.per_byte ? whole / static_cast<long double>(gain) : whole);
  };

  double lowest = std::numeric_limits<double>::infinity();
  std::size_t promising = 0;
  std::size_t left = 0;  // the window is what lies behind this index
  // Its cost is `rest[left]`, up to the item in the middle, and `behind` from there on.
  std::size_t middle = 0;
  std::vector<long double>& rest = scratch<long double>();
  long double behind = 0;
  Bytes gain = 0;
  Trail trail;
  for (Block* block = scene.arena.first(); block; block = block->next) {
    trail.pass(block);
    Item item;
    if (!weigh(block, item)) {
      left = middle = items.size();
      behind = 0;
      gain = 0;
      continue;
    }
    items.push_back(item);
    behind += item.cost;
    gain += item.gain;
    while (gain >= needed) {
      const Item& out = items[left];
      if (gain - out.gain < needed) {  // cannot shrink further: a minimal window
        const double value = value_of((left < middle ? rest[left] : 0) + behind, gain);
        if (value < lowest || (value == lowest && scene.side == Side::high)) {
          lowest = value;
          promising = windows.size();
        }
        windows.push_back({left, items.size() - 1, value});
      }
      gain -= out.gain;
      if (left == middle) {
        middle = items.size();
        rest.resize(middle);
        behind = 0;
        for (std::size_t i = middle; i-- > left;) rest[i] = behind += items[i].cost;
        behind = 0;
      }
      ++left;
    }
  }
  if (stale_count) scene.staleness = stale_sum / static_cast<double>(stale_count);
  if (windows.empty()) return {};

  const auto price = [&](const Window& window) {
    long double whole = 0;
    Bytes bytes = 0;
    for (std::size_t i = window.first; i <= window.last; ++i) {
      Item& item = items[i];
      if (!item.priced) {
        item.cost = score(scene, *item.block->storage);
        item.priced = true;
      }
      whole += item.cost;
      bytes += item.gain;
    }
    return value_of(whole, bytes);
  };
  const Window* best = &windows[promising];
  double least = price(*best);
  for (const Window& window : windows) {
    if (window.value >= least || &window == best) continue;
    if (const double value = price(window); value < least) {
      least = value;
      best = &window;
    }
  }
  return {items[best->first].block, items[best->last].block};
}

Bytes largest_run(const Arena& arena, bool may_move) {
  Bytes most = 0, run = 0;
  for (const Block* block = arena.first(); block; block = block->next) {
    const Storage* storage = block->storage;
    if (block->state == Block::State::free || (storage && storage->evictable())) {
      run += block->bytes;
      most = std::max(most, run);
    } else if (!may_move || !storage || storage->locks) {
      run = 0;
    }
  }
  return most;
}

}  // namespace coop
