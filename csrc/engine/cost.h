// What evicting a storage costs: its own op, and the evicted storages around it.
//
// The cost is exact (DTR's e*: all evicted ancestors and descendants, reached through evicted
// storages) up to Options::exact_limit ops. Beyond that it comes from union-find over evicted
// neighbours (DTR's e-hat). An exact cost is cached in the storage until something near it changes.
//
// Also keeps which storages are missing (evicted, and held or missed) and missed (a missing storage
// is made from them).
#pragma once

#include <vector>

#include "engine/chunk.h"
#include "engine/components.h"
#include "engine/op.h"
#include "engine/options.h"
#include "engine/storage.h"

namespace coop {

// Numbers for visited marks: one sequence for all walks over the lineage, so that no mark is
// cleared.
class Stamps {
 public:
  std::uint64_t next() { return ++last_; }

 private:
  std::uint64_t last_ = 0;
};

class Cost {
 public:
  Cost(const Options& options, Stamps& stamps) : options_(options), stamps_(stamps) {}

  // The storage has been evicted; and has been restored. A swapped storage counts as resident here,
  // because nothing has to run again for it.
  void evicted(Storage& storage);
  void restored(Storage& storage);
  // An evicted storage is no longer held.
  void unheld(Storage& storage);
  // An op that makes the storage has been recorded.
  void recorded(Storage& storage) { storage.price.epoch = 0; }
  // The old version takes over how often the storage is missed.
  void split(Storage& storage, Storage& old);

  // The cost of recomputing the storage if it were evicted now.
  Seconds projected(Storage& storage);
  // A lower bound of the same, without a walk. `exact`: it is the cost itself.
  Seconds at_least(const Storage& storage, bool& exact) const {
    exact = options_.cost == CostModel::own || (storage.price.epoch == epoch_ && storage.price.around >= 0);
    return storage.cost + (exact && options_.cost != CostModel::own ? storage.price.around : 0);
  }
  // Increases when all cached costs become invalid.
  std::uint64_t epoch() const { return epoch_; }

  std::size_t exact_costs() const { return exact_costs_; }
  std::size_t union_find_costs() const { return union_find_costs_; }

 private:
  void set_missing(Storage& storage, bool on);
  bool around_exact(Storage& storage, Seconds& sum);
  Seconds around_union_find(Storage& storage);
  void invalidate_around(Storage& storage);

  const Options& options_;
  Stamps& stamps_;
  Components components_;
  std::vector<Storage*> stack_, flipped_;  // scratch of the walks
  std::vector<std::uint32_t> roots_;
  std::uint64_t epoch_ = 1;
  bool caching_ = false;  // some cost may have been cached in this epoch
  std::size_t exact_costs_ = 0;
  std::size_t union_find_costs_ = 0;
};

}  // namespace coop
