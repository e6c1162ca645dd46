// Making room: a hole if there is one; else the policy chooses a run of blocks, whose storages
// leave or slide to its edge.
//
// Packing and compaction are for ops that have found no room even so. A Shortage says why there is
// none.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "engine/density.h"
#include "engine/lineage.h"
#include "engine/policy.h"
#include "engine/shortage.h"
#include "engine/transfers.h"

namespace coop {

// A plan in force: it may have a place for what is allocated now.
class PlannedPlaces {
 public:
  virtual ~PlannedPlaces() = default;
  // A raw block; null: the plan has no place for it, or the place is taken.
  virtual Block* block_for(Bytes bytes, Side side) = 0;
  // The program is following the plan.
  virtual bool under_way() const = 0;
};

class Room {
 public:
  Room(const Options& options, const Clock& clock, Arena& arena, Ledger& ledger, Journal& journal, Cost& cost,
       Lineage& lineage, Blocks& blocks, Transfers& transfers, Checks& checks, Stats& counts);

  // A raw block. Throws Shortage.
  Block* take(Bytes bytes, Side side);

  // Where the outputs of the op that runs next should go. Atomic, because other threads may
  // allocate meanwhile.
  void expect(Side side) { side_.store(side, std::memory_order_relaxed); }
  Side side() const { return side_.load(std::memory_order_relaxed); }
  Side side_of(double density) const { return options_.partition ? density_.side(density) : Side::low; }
  DensityClasses& density() { return density_; }

  // Slides every storage that may be moved towards the low end.
  void pack();
  // Evicts every storage that can leave, then packs the rest.
  void compact(bool wanted_too);

  // For a caller that chooses itself what leaves.
  SearchContext context(Side side);
  Policy& policy() { return *policy_; }
  // Notes the prices behind a choice that is about to be made; 0 bytes: everything leaves.
  void tell_prices(const SearchContext& context, Bytes needed) {
    if (options_.swap && journal_.explains()) [[unlikely]]
      tell_prices_slow(context, needed);
  }
  // Empties a run of blocks; storages that stay slide to its low edge. Returns the hole; null: a
  // storage could not leave after all, or another thread has been in the engine.
  Block* clear(Run run, SearchContext& context);

  // The most bytes in one piece that could be freed now.
  Bytes largest_run() const;
  Shortage shortage(Bytes needed) const;
  // Time spent making room so far. It is not part of any op's cost.
  Seconds seconds() const { return seconds_.load(std::memory_order_relaxed); }
  // The price of one byte for one second: the most that recent searches have paid.
  double price() const { return price_; }
  double fragmentation() const;

  // Whether a wanted storage may leave instead of a source that has to be written first.
  void let_wanted_leave(bool on) { may_take_wanted_ = on; }
  void follow(PlannedPlaces* plan) { plan_ = plan; }
  bool planned() const { return plan_ && plan_->under_way(); }

 private:
  Block* make(Bytes bytes, Side side);
  void remember(const SearchContext& context);
  void tell_prices_slow(const SearchContext& context, Bytes needed);

  const Options& options_;
  const Clock& clock_;
  Arena& arena_;
  Ledger& ledger_;
  Journal& journal_;
  Cost& cost_;
  Lineage& lineage_;
  Blocks& blocks_;
  Transfers& transfers_;
  Checks& checks_;
  Stats& counts_;
  const std::unique_ptr<Policy> policy_;
  PlannedPlaces* plan_ = nullptr;
  DensityClasses density_;
  std::atomic<Side> side_ = Side::low;
  std::atomic<Seconds> seconds_ = 0;
  SearchPrice last_;  // what the last search paid
  double price_ = 0;
  bool may_take_wanted_ = true;
  double fragmentation_sum_ = 0;
  std::uint64_t fragmentation_count_ = 0;
};

}  // namespace coop
