#include "engine/window.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace coop {
namespace {

// Scratch that keeps its memory from one search to the next.
template <typename Item>
std::vector<Item>& scratch() {
  thread_local std::vector<Item> items;
  items.clear();
  return items;
}

// Projected costs are expensive to compute and visiting all blocks is slow. So chunks are visited
// in the order of their lower bounds, until that is above the cheapest window found; and windows
// are first priced by lower bounds of their storages' costs. The result is the same as if all
// windows had been priced.
class WindowSearch {
 public:
  WindowSearch(SearchContext& context, Bytes needed, bool may_move)
      : context_(context),
        needed_(needed),
        may_move_(may_move),
        horizon_(std::max(context.price.staleness, kShortest)) {}

  Run cheapest() {
    std::vector<Place>& places = scratch<Place>();
    for (Chunk* chunk = context_.arena.first_chunk(); chunk; chunk = chunk->next) {
      places.push_back({bound(*chunk), chunk, false});
    }
    std::make_heap(places.begin(), places.end());
    while (!places.empty() && places.front().bound <= kSlack * least_) {
      std::pop_heap(places.begin(), places.end());
      Place place = places.back();
      places.pop_back();
      if (!place.fresh) {  // its bound may be too low by now
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
  static constexpr double kSlack = 1 + 1e-9;  // sums added in another order are rounded differently

  struct Place {
    double bound;
    Chunk* chunk;
    bool fresh;
    bool operator<(const Place& other) const { return bound > other.bound; }  // the lowest on top of the heap
  };
  struct Item {
    Block* block;
    double cost;  // a lower bound unless `priced`
    Bytes gain;
    bool priced;  // `cost` is exact
  };

  double bound(const Chunk& chunk) const {
    return bound(chunk, chunk.bound(context_.cost.epoch()).at(context_.clock.now));
  }
  double bound(const Chunk& chunk, double rate) const {
    if (may_move_) rate = std::min(rate, chunk.moving / context_.options.copy_bandwidth / horizon_);
    return context_.options.per_byte ? rate : rate * static_cast<double>(needed_);
  }
  double look_again(Chunk& chunk) const {
    const Cost& cost = context_.cost;
    const double rate = chunk.look_again(context_.clock, cost.epoch(), [&](const Storage& storage) {
      bool exact;
      return cost.at_least(storage, exact);
    });
    return bound(chunk, rate);
  }

  // Compares all windows that contain a block of this chunk.
  void look_around(const Chunk& chunk) {
    items_.clear();
    rest_.clear();
    start_window();
    Block* block = chunk.first;
    Item item;
    for (Bytes gain = 0; gain < needed_ && block->prev && weigh(block->prev, item); gain += item.gain)
      block = block->prev;
    const Block* behind = chunk.next ? chunk.next->first : nullptr;
    std::size_t end = SIZE_MAX;  // of the items that belong to the chunk
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

  // Two pointers in address order. Only minimal windows are compared. Scores are added and never
  // subtracted: subtracting scores of very different size leaves a rounding error that could decide
  // a comparison.
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
  // Prices the window exactly and compares it with the best one.
  void compare() {
    long double whole = 0;
    for (std::size_t i = left_; i < items_.size(); ++i) {
      Item& item = items_[i];
      if (!item.priced) {
        item.cost = context_.score(*item.block->storage);
        item.priced = true;
      }
      whole += item.cost;
    }
    const double value = value_of(whole, gain_);
    Block* first = items_[left_].block;
    const bool nearer = !best_.first || (context_.side == Side::low ? first->offset < best_.first->offset
                                                                    : first->offset > best_.first->offset);
    if (value < least_ || (value == least_ && nearer)) {
      least_ = value;
      best_ = {first, items_.back().block};
    }
  }

  // What the block adds to a window. False: it can neither leave nor move.
  bool weigh(Block* block, Item& item) const {
    item = {block, 0, block->bytes, true};
    if (block->state == Block::State::free) return true;
    const Storage* storage = block->storage;
    if (!storage) return false;
    if (context_.may_leave(*storage) && !(may_move_ && context_.moves_aside(*block->storage))) {
      if (storage->claims.wanted) {
        item.cost = SearchContext::score_of_wanted(*storage);
      } else if (!storage->droppable()) {
        item.cost = least_cost(*storage, item.priced) / storage->idle(context_.clock);
      }
      return true;
    }
    if (!may_move_ || !storage->movable()) return false;
    item.cost = context_.cost_of_moving(*storage);
    item.gain = 0;
    return true;
  }

  Seconds least_cost(const Storage& storage, bool& exact) const {
    exact = true;
    if (!storage.producer) return storage.copy.cost;
    const Seconds again = context_.cost.at_least(storage, exact);
    if (again < storage.copy.cost) return again;
    exact = true;  // recomputing costs at least that much
    return storage.copy.cost;
  }

  double value_of(long double cost, Bytes gain) const {
    const long double whole = std::max(cost, 0.0L);
    return static_cast<double>(context_.options.per_byte ? whole / static_cast<long double>(gain) : whole);
  }

  void remember(const Run& run) {
    Seconds sum = 0;
    std::size_t count = 0;
    run.each([&](const Block& block) {
      if (!block.storage || context_.moves_aside(*block.storage)) return;
      sum += context_.clock.now - block.storage->last_access;
      ++count;
    });
    if (count) context_.found.staleness = sum / static_cast<double>(count);
    context_.found.per_byte = context_.options.per_byte ? least_ : least_ / static_cast<double>(needed_);
  }

  SearchContext& context_;
  const Bytes needed_;
  const bool may_move_;
  const Seconds horizon_;
  Run best_;
  double least_ = std::numeric_limits<double>::infinity();  // its price
  // Scratch vectors.
  std::vector<Item>& items_ = scratch<Item>();
  std::vector<long double>& rest_ = scratch<long double>();
  // The window is the items from `left_` on. Those before `middle_` cost `rest_[left_]`, the others
  // `behind_`.
  std::size_t left_ = 0, middle_ = 0;
  long double behind_ = 0;
  Bytes gain_ = 0;
};

}  // namespace

Run cheapest_window(SearchContext& context, Bytes needed, bool may_move) {
  return WindowSearch(context, needed, may_move).cheapest();
}

// Searches from the mark, from the request's end of the arena inwards, over at most kFar blocks.
Run free_window(SearchContext& context, Bytes needed) {
  constexpr int kFar = 64;
  const bool up = context.side == Side::low;
  Block* start = nullptr;
  Block* block = context.arena.mark(context.side);
  Bytes gain = 0;
  for (int i = 0; i < kFar && block; ++i, block = up ? block->next : block->prev) {
    const Storage* storage = block->storage;
    if (block->state != Block::State::free && !(storage && storage->droppable() && storage->evictable())) {
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
    context.arena.set_mark(context.side, block);
    return up ? Run{start, block} : Run{block, start};
  }
  return {};
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
