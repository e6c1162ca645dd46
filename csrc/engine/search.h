// What a policy may look at, and what it says of a storage.
#pragma once

#include <limits>

#include "engine/arena.h"
#include "engine/cost.h"
#include "engine/options.h"

namespace coop {

// What the last search has paid. A move should serve as long as what left had been idle, and the bytes of what is moved
// are not gained.
struct SearchPrice {
  Seconds staleness = 0;                                      // mean, of what left
  double per_byte = std::numeric_limits<double>::infinity();  // infinite: not known

  bool known() const { return per_byte != std::numeric_limits<double>::infinity(); }
};

struct SearchContext {
  const Options& options;
  Arena& arena;
  Cost& cost;
  Side side = Side::low;             // where the request would like to lie
  Clock clock = {};                  // when the request was made
  double read_rate = 1;              // bytes per second that come back from outside
  SearchPrice price = {};            // by which moves are priced
  SearchPrice found = {};            // for the next search
  bool may_take_wanted = true;       // instead of a source that would have to be written first
  bool wanted_too = false;           // what waiting ops will read may leave; else it is only moved, like what is pinned
  bool unwritten_too = true;         // sources may leave whose bytes have to be written first
  bool windows = options.windows();  // one run of neighbours leaves at a time

  bool may_leave(const Storage& storage) const {
    return storage.evictable(wanted_too) && (unwritten_too || storage.producer || storage.copy.page);
  }

  // With its bytes, and back. What is wanted would be read at once, and waited for.
  Seconds cost_of_swapping(const Storage& storage) const;
  // Of the cheapest way out, and back.
  Seconds cost_of_leaving(Storage& storage);
  // Coop's and DTR's score: cost over idle time.
  double score(Storage& storage);
  // More than anything that nobody waits for; and the deeper, the more: where so much is missing, an activation is
  // recomputed from the layer below, but a gradient from the whole network.
  static double score_of_wanted(const Storage& storage);
  double cost_of_moving(const Storage& storage) const;
  // Whether a storage of a run is moved to its edge instead of leaving: it cannot leave, or is expensive and quickly
  // moved.
  bool moves_aside(Storage& storage);
};

// Whether a storage that leaves takes its bytes with it: it cannot be made again, or not so cheaply.
bool leaves_with_bytes(Cost& cost, Storage& storage);

}  // namespace coop
