// The evicted storages around a storage, as the ideal simulator's policies count them.
//
// Regions (DTR, MSPS): for each resident storage, the evicted storages that it reaches through
// evicted ones, upwards and downwards; and the resident ones where that ends, its edge. The rules:
// an eviction merges the regions on both sides of it. Regions of storages that an op makes
// resident, and of those at their edges, are walked anew. No other region is. A walk also sees ops
// that wait for their inputs, with the costs of that moment.
//
// Most of these walks would never be used. So a region upwards, which contains no waiting op, may
// be stale: it is walked only when it is needed, with the same result.
//
// Components (DTR-eq): union-find over evicted neighbours. They never split: a storage that comes
// back is only subtracted.
#pragma once

#include <cstdint>
#include <vector>

namespace coop::ideal {

using Id = std::uint32_t;
inline constexpr Id kNone = ~Id{0};

enum class Way : std::uint8_t { up, down };

struct Region {
  std::vector<Id> inside;
  std::vector<Id> edge;
};

struct alignas(64) Storage {
  // What searches and walks read comes first, in one cache line.
  Id next = kNone;  // in the pool
  Id prev = kNone;
  std::int64_t bytes = 0;
  std::int64_t cost = 0;         // of the distinct ops that made its tensors
  std::int64_t touched = 0;      // on the clock
  std::int64_t evicted[2] = {};  // cost of each region
  std::uint32_t mark = 0;        // of the last walk that passed
  bool resident = false;
  bool pinned = false;
  bool stale = false;  // the region upwards has to be walked
  std::uint32_t locks = 0;

  std::vector<Id> neighbours[2];  // up: what it was made from; down: what was made from it
  std::uint32_t references = 0;   // from outside, to any of its tensors
  Id last_op = kNone;             // the last op that made one of its tensors
  Id component = kNone;           // union-find node while evicted, or not yet computed
  std::vector<Id> tensors;
  Region region[2];
};

class Surroundings {
 public:
  Surroundings(std::vector<Storage>& storages, bool regions, bool components)
      : storages_(storages), regions_(regions), components_(components) {}

  void born(Id storage);
  // An op made something from `from` that is part of `to`: a view of several storages, if `to` is
  // not new.
  void connect(Id from, Id to, bool new_storage);
  // The cost of a storage is about to grow, because a view of it was made.
  void cost_grows(Id storage);
  // The new op has run: nothing waits any more.
  void settled() { cost_grew_ = false; }

  void evicted(Id storage);
  // `at_once`: by a new op whose inputs were all resident.
  void made_resident(const std::vector<Id>& storages, bool at_once);

  void refresh(Id storage);
  std::int64_t components_around(Id storage);

 private:
  struct Node {
    Id parent;
    std::int64_t cost;
    std::uint32_t mark = 0;
  };

  void absorb(Id base, Id gone, Way way);
  void rebuild(Id base, Way way);
  std::int64_t walk(Id base, Way way, Region& region);
  void meet(Id storage);
  Id new_node(std::int64_t cost);
  Id root(Id node);

  std::vector<Storage>& storages_;
  const bool regions_, components_;
  bool views_of_several_ = false;  // then regions may differ from what a walk finds: none may be stale
  bool cost_grew_ = false;         // of an evicted storage, since the regions with it were walked
  std::uint32_t mark_ = 0;
  std::vector<Node> nodes_;
  std::vector<Id> stack_, edge_;
};

}  // namespace coop::ideal
