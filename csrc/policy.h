// Policies: which neighbouring blocks leave for this request?
//
// A policy sees the arena and the lineage and names one run of blocks. The engine evicts what is evictable in it, slides
// what may only move to its low edge, and tries again. Coop names a run that is large enough at once; DTR, DTE, DELTA
// and LRU name one storage at a time.
#pragma once

#include <limits>
#include <memory>

#include "arena.h"
#include "lineage.h"
#include "types.h"

namespace coop {

// What the last search has paid: a move should serve as long as what left had been of no use, and the bytes of what is
// moved are not gained.
struct Terms {
  Seconds staleness = 0;                                   // mean, of what left
  double price = std::numeric_limits<double>::infinity();  // of a byte
};

// What a policy may look at.
struct Scene {
  const Options& options;
  Arena& arena;
  Lineage& lineage;
  Side side = Side::low;      // where the request would like to lie
  Seconds now = 0, ran = 0;   // the engine's time, and the program's own
  double reading = 1;         // bytes per second that come back from outside
  Terms terms;                // by which moves are priced
  Terms found;                // for the next search
  bool yielding = true;       // what waiting ops will read may leave instead of a source that has to be written first
  bool wanted_too = false;    // what waiting ops will read may leave; else it can only be moved, like what is pinned
  bool unwritten_too = true;  // sources may leave whose bytes have to be written first

  void take(const Scene& other) {
    found = other.found;
    wanted_too = other.wanted_too;
    unwritten_too = other.unwritten_too;
  }
  bool may_leave(const Storage& storage) const {
    return storage.evictable(wanted_too) && (unwritten_too || storage.producer || storage.page);
  }
};

struct Run {
  Block* first = nullptr;  // null: there is none
  Block* last = nullptr;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual Run choose(Scene& scene, Bytes needed) = 0;
};

// What the policy chooses, or else the cheapest window. What waiting ops will read leaves only if nothing else can; or instead
// of a source that has to be written, which would be waited for twice, now and soon, if that is dearer.
Run find_room(Policy& policy, Scene& scene, Bytes needed);

std::unique_ptr<Policy> make_policy(const Options& options);

// The cheapest run that is large enough, where no hole is: Coop's sliding window. Also every policy's last resort.
Run cheapest_window(Scene& scene, Bytes needed, bool may_move);

// Whether a storage that leaves takes its bytes with it: it cannot be made again, or not so cheaply.
bool swaps(Lineage& lineage, Storage& storage);

// Whether a storage of a run is moved to its edge instead of leaving: it cannot leave, or is dear and quickly moved.
bool stays(Scene& scene, Storage& storage);

// The largest piece that could be freed now.
Bytes largest_run(const Arena& arena, bool may_move);

}  // namespace coop
