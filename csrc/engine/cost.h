// What it costs to evict a storage: its own op, and what is evicted around it.
//
// Exact (DTR's e*: all evicted ancestors and descendants reached through evicted storages) up to Options::exact_limit
// ops, by union-find over evicted neighbours (DTR's e-hat) beyond. An exact result is cached in the storage until
// something near it changes. Also who is missed: what an evicted storage was made from, if somebody needs that storage.
#pragma once

#include <vector>

#include "engine/chunk.h"
#include "engine/components.h"
#include "engine/op.h"
#include "engine/options.h"
#include "engine/storage.h"

namespace coop {

// Numbers for visited marks: one sequence for all walks over the lineage.
class Stamps {
 public:
  std::uint64_t next() { return ++last_; }

 private:
  std::uint64_t last_ = 0;
};

class Cost {
 public:
  Cost(const Options& options, Stamps& stamps) : options_(options), stamps_(stamps) {}

  // The bytes of a storage are nowhere any more, and are back. What is swapped is as good as resident here: nothing
  // has to run again for it.
  void evicted(Storage& storage);
  void restored(Storage& storage);
  // An evicted storage is no longer held.
  void unheld(Storage& storage);
  // An op is recorded that makes it.
  void recorded(Storage& storage) { storage.price.epoch = 0; }
  // The old version takes over what was said of the storage.
  void split(Storage& storage, Storage& old);

  // Cost of making the storage again if its bytes were gone now.
  Seconds projected(Storage& storage);
  // The same, or less if it would take a walk: then `exact` is false.
  Seconds at_least(const Storage& storage, bool& exact) const {
    exact = options_.cost == CostModel::own || (storage.price.epoch == epoch_ && storage.price.around >= 0);
    return storage.cost + (exact && options_.cost != CostModel::own ? storage.price.around : 0);
  }
  // Moves on when all that is known of projected costs has become void.
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
  bool caching_ = false;  // a cost may be cached in this epoch
  std::size_t exact_costs_ = 0;
  std::size_t union_find_costs_ = 0;
};

}  // namespace coop
