// What a policy may look at, and how storages are priced.
#pragma once

#include <limits>

#include "engine/arena.h"
#include "engine/cost.h"
#include "engine/options.h"

namespace coop {

// What the last search paid. It prices moves: a move should pay off for as long as the storages
// that left had been idle, and the bytes of a moved storage are not gained.
struct SearchPrice {
  Seconds staleness = 0;                                      // mean staleness of the storages that left
  double per_byte = std::numeric_limits<double>::infinity();  // infinite: not known

  bool known() const { return per_byte != std::numeric_limits<double>::infinity(); }
};

struct SearchContext {
  const Options& options;
  Arena& arena;
  Cost& cost;
  Side side = Side::low;             // where the request should lie
  Clock clock = {};                  // when the request was made
  double read_rate = 1;              // bytes per second that are read from the tier
  SearchPrice price = {};            // paid by the last search: prices moves
  SearchPrice found = {};            // paid by this search
  bool may_take_wanted = true;       // a wanted storage may leave instead of a source that must be written
  bool wanted_too = false;           // wanted storages may leave; else they may only be moved
  bool unwritten_too = true;         // sources may leave that have to be written first
  bool windows = options.windows();  // one run of neighbours leaves at a time

  bool may_leave(const Storage& storage) const {
    return storage.evictable(wanted_too) && (unwritten_too || storage.producer || storage.copy.page);
  }

  // The cost of leaving with its bytes and coming back. A wanted storage would be read back at
  // once, and the program would wait for all of it.
  Seconds cost_of_swapping(const Storage& storage) const;
  // The cost of the cheaper way out and back.
  Seconds cost_of_leaving(Storage& storage);
  // Coop's and DTR's score: cost over idle time.
  double score(Storage& storage);
  // The score of a wanted storage: higher than that of any other, and higher for deeper ones. When
  // so much is missing, an activation can be recomputed from the layer below, but a gradient only
  // from the whole network.
  static double score_of_wanted(const Storage& storage);
  double cost_of_moving(const Storage& storage) const;
  // Whether a storage of a run is moved to the run's edge instead of leaving: it cannot leave, or
  // it is expensive and cheap to move.
  bool moves_aside(Storage& storage);
};

// Whether a storage that leaves is swapped out: it cannot be recomputed, or swapping is cheaper.
bool leaves_with_bytes(Cost& cost, Storage& storage);

}  // namespace coop
