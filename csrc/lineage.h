// The graph of ops and storages: who made what, from what.
//
// A storage lives while somebody outside holds it, it is pinned or locked, or a recorded op reads it. An op lives while
// one of its outputs does. Releases are queued and worked off in small portions, without recursion, so that dropping a
// graph of any depth neither overflows the stack nor causes a pause.
//
// Projected cost of evicting a storage: its own op plus what is evicted around it. Exact (DTR's e*: all evicted
// ancestors and descendants reached through evicted storages) up to Options::exact_limit ops, by union-find over
// evicted neighbours (DTR's e-hat) beyond. An exact result is cached in the storage until something near it changes.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "pool.h"
#include "types.h"

namespace coop {

// Disjoint sets of evicted storages with the sum of their costs. Nodes are counted and recycled. Taking a storage out
// subtracts its cost but leaves the set joined: sets only split when they empty (DTR, appendix on e-hat).
class Components {
 public:
  std::uint32_t add(Seconds cost);
  void join(std::uint32_t a, std::uint32_t b);
  void remove(std::uint32_t node, Seconds cost);
  std::uint32_t find(std::uint32_t node);
  Seconds cost(std::uint32_t root) const { return nodes_[root].cost; }
  std::size_t size() const { return nodes_.size() - free_.size(); }

 private:
  struct Node {
    std::uint32_t parent = 0;  // itself: a root
    std::uint32_t references = 0;
    Seconds cost = 0;
  };
  void release(std::uint32_t node);

  std::vector<Node> nodes_{1};  // node 0 stands for "none"
  std::vector<std::uint32_t> free_;
};

class Lineage {
 public:
  // `forget` is told of every storage that ceases to exist, `drop` of every op.
  Lineage(const Options& options, std::function<void(Storage&)> forget, std::function<void(Op&)> drop);
  ~Lineage();
  Lineage(const Lineage&) = delete;
  Lineage& operator=(const Lineage&) = delete;

  Storage* make_storage(Bytes bytes);
  // Outputs may contain null for results that are nobody's storage.
  Op* make_op(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
              InPlace in_place);

  // A new storage takes over recipe and consumers: the old version of one that has been overwritten.
  Storage* split(Storage& storage);
  void commit(Storage& storage);
  // To be called whenever a storage may have become unused.
  void reconsider(Storage& storage);
  // Releases at most `portion` ops whose outputs are all gone. True when none are left.
  bool sweep(std::size_t portion);

  // Told by the engine when the bytes of a storage are nowhere any more, and when they are back. What is outside the arena
  // is as good as resident here: nothing has to be run again for it.
  void evicted(Storage& storage);
  void restored(Storage& storage);
  // An evicted storage is no longer held.
  void unheld(Storage& storage);

  // Cost of making the storage again if its bytes were gone now.
  Seconds projected_cost(Storage& storage);
  // The same, or less if it would take a walk: then `exact` is false.
  Seconds least_cost(const Storage& storage, bool& exact) const {
    exact = options_.cost == CostModel::own || (storage.epoch == epoch_ && storage.around >= 0);
    return storage.cost + (exact && options_.cost != CostModel::own ? storage.around : 0);
  }
  // Moves on when all that is known of projected costs has become void.
  std::uint64_t epoch() const { return epoch_; }

  // Everything that outside holders could need the present value of this storage for: held, pinned or locked storages
  // that depend on it through storages that are none of these. Returns how many ops it looked at: with more than `most` it
  // gives up.
  std::size_t held_dependents(Storage& storage, std::vector<Storage*>& found, std::size_t most = SIZE_MAX);
  // How many ops lie behind a storage through storages that nobody holds, its own included; counted up to `most` + 1.
  std::size_t trail(const Storage& storage, std::size_t most);
  // The ops that bring these back, as far as they are absent, in an order in which they can run.
  void missing(std::span<Storage* const> goals, std::vector<Op*>& order);
  // The bytes that each of these has to have at once to run, absent inputs brought back one after the other (Sethi and
  // Ullman's numbers, in bytes).
  void find_needs(std::span<Op* const> order);

  std::size_t storages() const { return storages_.size(); }
  std::size_t ops() const { return ops_; }
  std::size_t exact_costs() const { return exact_costs_; }
  std::size_t union_find_costs() const { return union_find_costs_; }
  // Throws std::logic_error if counts and links disagree.
  void check(const Storage& storage) const;

 private:
  void unlink(Edge& edge);
  void set_missing(Storage& storage, bool on);
  bool around_exact(Storage& storage, Seconds& sum);
  Seconds around_union_find(Storage& storage);
  void invalidate_around(Storage& storage);

  const Options& options_;
  std::function<void(Storage&)> forget_;
  std::function<void(Op&)> drop_;
  Pool<Storage> storages_;
  Components components_;
  std::deque<Op*> dying_;
  std::vector<Storage*> stack_, flipped_;  // scratch of the walks
  std::vector<const Op*> trail_;           // likewise
  std::vector<std::uint32_t> roots_;
  std::uint64_t stamp_ = 0;
  std::uint64_t epoch_ = 1;
  bool caching_ = false;  // a cost may be cached in this epoch
  std::uint64_t next_id_ = 1, next_op_ = 1;
  std::size_t ops_ = 0;
  std::size_t exact_costs_ = 0;
  std::size_t union_find_costs_ = 0;
};

}  // namespace coop
