// Prices that all policies share.
#include "engine/search.h"

#include <algorithm>

namespace coop {

double SearchContext::score_of_wanted(const Storage& storage) {
  return (1.0 + (storage.producer ? storage.producer->depth : 0)) / kShortest;
}

Seconds SearchContext::cost_of_swapping(const Storage& storage) const {
  return storage.claims.wanted && storage.copy.page ? static_cast<double>(storage.bytes) / read_rate
                                                    : storage.copy.cost;
}

Seconds SearchContext::cost_of_leaving(Storage& storage) {
  const Seconds swapping = cost_of_swapping(storage);
  return storage.producer ? std::min(cost.projected(storage), swapping) : swapping;
}

double SearchContext::score(Storage& storage) {
  if (storage.claims.wanted) return score_of_wanted(storage);
  if (storage.droppable()) return 0;
  return cost_of_leaving(storage) / storage.idle(clock);
}

double SearchContext::cost_of_moving(const Storage& storage) const {
  return static_cast<double>(storage.block->bytes) / options.copy_bandwidth / std::max(price.staleness, kShortest);
}

bool SearchContext::moves_aside(Storage& storage) {
  constexpr double kClearly = 4;  // prices change from one search to the next
  if (!may_leave(storage)) return true;
  if (!windows || !options.move || storage.claims.wanted || storage.droppable() || !price.known()) {
    return false;
  }
  const double room = kClearly * price.per_byte * static_cast<double>(storage.block->bytes);
  return score(storage) > cost_of_moving(storage) + room;
}

bool leaves_with_bytes(Cost& cost, Storage& storage) {
  if (storage.droppable()) return false;
  return !storage.producer || (storage.swappable() && storage.copy.cost <= cost.projected(storage));
}

}  // namespace coop
