// Coop's window (NeurIPS 2023, section 3) and the one-at-a-time policies: DTR (ICLR 2021), DTE (MegTaiChi, 2022), DELTA
// (2022), LRU.
//
// Coop's score of a storage is c / s: projected cost over staleness (or the time until it is used next, where that is known).
// What differs from the authors' code: every window is
// shrunk from the left before it is compared, the last one too; a staleness of zero is a small number instead of a
// division by zero; cost is per byte of the window (Options::per_byte), because the sum alone prefers small dear results;
// storages nobody holds cost nothing; a source in the way, or a result that is dear, is moved aside, and a wall only if
// it is locked.
#include "policy.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace coop {
namespace {

// Dearer than anything that nobody waits for; and the deeper, the dearer: where so much is missing, an activation is
// recomputed from the layer below, but a gradient from the whole network.
double score_of_wanted(const Storage& storage) {
  return (1.0 + (storage.producer ? storage.producer->depth : 0)) / kShortest;
}

// Of the cheapest way out, and back. What is wanted would be read at once, and waited for.
Seconds cost_of_leaving(Scene& scene, Storage& storage) {
  const Seconds reading = static_cast<double>(storage.bytes) / scene.reading;
  const Seconds swapping = storage.wanted && storage.page ? reading : storage.swap_cost;
  return storage.producer ? std::min(scene.lineage.projected_cost(storage), swapping) : swapping;
}

double score(Scene& scene, Storage& storage) {
  if (storage.wanted) return score_of_wanted(storage);
  if (storage.spare()) return 0;
  return cost_of_leaving(scene, storage) / storage.idle(scene.now, scene.ran);
}

// Of what leaves of a run: how long that takes; whether a source is among it that has to be written first, or what is wanted.
struct Leaving {
  Seconds cost = 0;
  bool unwritten = false, wanted = false;
};
Leaving leaving(Scene& scene, Run run) {
  Leaving result;
  for (Block* block = run.first;; block = block->next) {
    if (Storage* storage = block->storage; storage && !stays(scene, *storage)) {
      if (!storage->spare()) result.cost += cost_of_leaving(scene, *storage);
      result.unwritten = result.unwritten || (storage->source() && !storage->page);
      result.wanted = result.wanted || storage->wanted;
    }
    if (block == run.last) break;
  }
  return result;
}

double cost_of_moving(const Scene& scene, const Storage& storage) {
  return static_cast<double>(storage.block->bytes) / scene.options.copy_bandwidth /
         std::max(scene.terms.staleness, kShortest);
}

// Scratch that keeps its memory from one search to the next.
template <typename Item>
std::vector<Item>& scratch() {
  thread_local std::vector<Item> items;
  items.clear();
  return items;
}

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

// The cheapest of all runs of blocks that are large enough, and are not without their first or their last block.
//
// What is evictable leaves. What is not, or is much dearer than its bytes are worth, may be moved to the run's edge and
// makes no room itself. Raw and locked blocks are walls. Projected costs are dear to find, and memory is slow to walk: so chunks are looked at in the order of what
// a window costs there at least, until that is more than the cheapest window found, and windows are first priced by what
// is known of their storages. The result is the same as if all windows had been priced: the cheapest, and of several the
// one nearest the request's end of the arena.
class WindowSearch {
 public:
  WindowSearch(Scene& scene, Bytes needed, bool may_move)
      : scene_(scene), needed_(needed), may_move_(may_move), horizon_(std::max(scene.terms.staleness, kShortest)) {}

  Run cheapest() {
    std::vector<Place>& places = scratch<Place>();
    for (Chunk* chunk = scene_.arena.first_chunk(); chunk; chunk = chunk->next) {
      places.push_back({bound(*chunk), chunk, false});
    }
    std::make_heap(places.begin(), places.end());
    while (!places.empty() && places.front().bound <= kSlack * least_) {
      std::pop_heap(places.begin(), places.end());
      Place place = places.back();
      places.pop_back();
      if (!place.fresh) {  // its bound may have become too low
        place.fresh = true;
        if (const double now = look_again(*place.chunk); now > place.bound) {
          place.bound = now;
          places.push_back(place);
          std::push_heap(places.begin(), places.end());
          continue;
        }
      }
      look_around(*place.chunk);
    }
    if (best_.first) remember(best_);
    return best_;
  }

 private:
  static constexpr double kSlack = 1 + 1e-9;  // for comparing sums that were rounded in another order

  struct Place {
    double bound;
    Chunk* chunk;
    bool fresh;
    bool operator<(const Place& other) const { return bound > other.bound; }  // the least is the top of a heap
  };
  struct Item {
    Block* block;
    double cost;  // at least
    Bytes gain;
    bool priced;  // in full
  };

  double bound(const Chunk& chunk) const { return bound(chunk, chunk.bound(scene_.lineage.epoch()).at(scene_.now)); }
  double bound(const Chunk& chunk, double rate) const {
    if (may_move_) rate = std::min(rate, chunk.moving / scene_.options.copy_bandwidth / horizon_);
    return scene_.options.per_byte ? rate : rate * static_cast<double>(needed_);
  }
  double look_again(Chunk& chunk) const {
    const Lineage& lineage = scene_.lineage;
    const double rate = chunk.look_again(scene_.now, scene_.ran, lineage.epoch(), [&](const Storage& storage) {
      bool exact;
      return lineage.least_cost(storage, exact);
    });
    return bound(chunk, rate);
  }

  // All windows with a block of this chunk.
  void look_around(const Chunk& chunk) {
    items_.clear();
    rest_.clear();
    start_window();
    Block* block = chunk.first;
    Item item;
    for (Bytes gain = 0; gain < needed_ && block->prev && weigh(block->prev, item); gain += item.gain)
      block = block->prev;
    const Block* behind = chunk.next ? chunk.next->first : nullptr;
    std::size_t end = SIZE_MAX;  // of the chunk's items
    for (; block; block = block->next) {
      if (block == behind) end = items_.size();
      if (left_ >= end) break;
      if (weigh(block, item)) {
        take(item);
      } else {
        start_window();
      }
    }
  }

  // Two pointers in address order. Only minimal windows are compared. Scores are added and never subtracted: those of very
  // different size would leave dust behind that decides a comparison.
  void start_window() {
    left_ = middle_ = items_.size();
    behind_ = 0;
    gain_ = 0;
  }
  void take(const Item& item) {
    items_.push_back(item);
    behind_ += item.cost;
    gain_ += item.gain;
    while (gain_ >= needed_) {
      const Item& out = items_[left_];
      if (gain_ - out.gain < needed_) {  // cannot shrink further: a minimal window
        const double value = value_of((left_ < middle_ ? rest_[left_] : 0) + behind_, gain_);
        if (value <= kSlack * least_) compare();
      }
      gain_ -= out.gain;
      if (left_ == middle_) {
        middle_ = items_.size();
        rest_.resize(middle_);
        behind_ = 0;
        for (std::size_t i = middle_; i-- > left_;) rest_[i] = behind_ += items_[i].cost;
        behind_ = 0;
      }
      ++left_;
    }
  }
  // The window, now priced in full, with the best one.
  void compare() {
    long double whole = 0;
    for (std::size_t i = left_; i < items_.size(); ++i) {
      Item& item = items_[i];
      if (!item.priced) {
        item.cost = score(scene_, *item.block->storage);
        item.priced = true;
      }
      whole += item.cost;
    }
    const double value = value_of(whole, gain_);
    Block* first = items_[left_].block;
    const bool nearer = !best_.first || (scene_.side == Side::low ? first->offset < best_.first->offset
                                                                  : first->offset > best_.first->offset);
    if (value < least_ || (value == least_ && nearer)) {
      least_ = value;
      best_ = {first, items_.back().block};
    }
  }

  // False: nothing can be done about this block.
  bool weigh(Block* block, Item& item) const {
    item = {block, 0, block->bytes, true};
    if (block->state == Block::State::free) return true;
    const Storage* storage = block->storage;
    if (!storage) return false;
    if (scene_.may_leave(*storage) && !(may_move_ && stays(scene_, *block->storage))) {
      if (storage->wanted) {
        item.cost = score_of_wanted(*storage);
      } else if (!storage->spare()) {
        item.cost = least_cost(*storage, item.priced) / storage->idle(scene_.now, scene_.ran);
      }
      return true;
    }
    if (!may_move_ || !storage->movable()) return false;
    item.cost = cost_of_moving(scene_, *storage);
    item.gain = 0;
    return true;
  }

  Seconds least_cost(const Storage& storage, bool& exact) const {
    exact = true;
    if (!storage.producer) return storage.swap_cost;
    const Seconds again = scene_.lineage.least_cost(storage, exact);
    if (again < storage.swap_cost) return again;
    exact = true;  // it is dearer still
    return storage.swap_cost;
  }

  double value_of(long double cost, Bytes gain) const {
    const long double whole = std::max(cost, 0.0L);
    return static_cast<double>(scene_.options.per_byte ? whole / static_cast<long double>(gain) : whole);
  }

  void remember(const Run& run) {
    Seconds sum = 0;
    std::size_t count = 0;
    for (const Block* block = run.first;; block = block->next) {
      if (block->storage && !stays(scene_, *block->storage)) {
        sum += scene_.now - block->storage->last_access;
        ++count;
      }
      if (block == run.last) break;
    }
    if (count) scene_.found.staleness = sum / static_cast<double>(count);
    scene_.found.price = scene_.options.per_byte ? least_ : least_ / static_cast<double>(needed_);
  }

  Scene& scene_;
  const Bytes needed_;
  const bool may_move_;
  const Seconds horizon_;
  Run best_;
  double least_ = std::numeric_limits<double>::infinity();  // its price
  // They keep their memory from one search to the next.
  std::vector<Item>& items_ = scratch<Item>();
  std::vector<long double>& rest_ = scratch<long double>();
  // The window is what lies behind this index. It costs `rest_[left_]`, up to the item in the middle, and `behind_` from
  // there on.
  std::size_t left_ = 0, middle_ = 0;
  long double behind_ = 0;
  Bytes gain_ = 0;
};

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
      if (!block->storage || !scene.may_leave(*block->storage)) continue;
      const double value = Score::of(scene, *block);
      if (value < least || !best) {
        least = value;
        best = block;
      }
    }
    if (best) scene.found.price = score(scene, *best->storage) / static_cast<double>(best->bytes);
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
    return score(scene, *block.storage) / static_cast<double>(block.bytes + block.free_beside());
  }
};

// DELTA's filter: the largest times the stalest first. Which way it leaves, the director, is every policy's: `swaps`.
struct Delta {
  static double of(Scene& scene, Block& block) {
    const Storage& storage = *block.storage;
    if (storage.wanted) return score_of_wanted(storage);
    if (storage.spare()) return 0;
    return 1 / (static_cast<double>(block.bytes) * std::max(scene.now - storage.last_access, kShortest));
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
    case PolicyKind::delta: return std::make_unique<Single<Delta>>();
    case PolicyKind::coop: break;
  }
  if (!options.windows()) return std::make_unique<Single<Dte>>();
  return std::make_unique<Coop>();
}

bool swaps(Lineage& lineage, Storage& storage) {
  if (storage.spare()) return false;
  return !storage.producer || (storage.swappable() && storage.swap_cost <= lineage.projected_cost(storage));
}

bool stays(Scene& scene, Storage& storage) {
  constexpr double kClearly = 4;  // prices change from one search to the next
  if (!scene.may_leave(storage)) return true;
  const Options& options = scene.options;
  if (!options.windows() || !options.move || storage.wanted || storage.spare() || scene.terms.price == Terms().price)
    return false;
  const double room = kClearly * scene.terms.price * static_cast<double>(storage.block->bytes);
  return score(scene, storage) > cost_of_moving(scene, storage) + room;
}

Run cheapest_window(Scene& scene, Bytes needed, bool may_move) {
  return WindowSearch(scene, needed, may_move).cheapest();
}

Run find_room(Policy& policy, Scene& scene, Bytes needed) {
  scene.unwritten_too = true;
  Run run;
  for (const bool wanted_too : {false, true}) {
    scene.wanted_too = wanted_too;
    run = policy.choose(scene, needed);
    if (!run.first) {
      scene.terms.price = Terms().price;
      run = cheapest_window(scene, needed, scene.options.rescue);
    }
    if (run.first) break;
  }
  if (!run.first || scene.wanted_too || !scene.yielding || !scene.options.swap || !scene.options.windows()) return run;
  const Leaving first = leaving(scene, run);
  if (!first.unwritten) return run;
  Scene other = scene;
  other.wanted_too = true;
  other.unwritten_too = false;
  const Run found = policy.choose(other, needed);
  if (!found.first) return run;
  const Leaving second = leaving(other, found);
  if (!second.wanted || second.cost >= first.cost) return run;
  scene.take(other);
  return found;
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
