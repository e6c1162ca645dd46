// What is evicted around a storage, as the ideal simulator's policies count it.
//
// Regions (DTR, MSPS): for each resident storage the evicted storages it reaches, through evicted ones, upwards and
// downwards; and the resident ones where that ends, its edge. An eviction merges the regions on either side of it. What
// an op makes resident gets its regions anew, and so does what lies at their edges. Nothing else is looked at again: a
// view with several inputs, or an op that is still waiting for its inputs, is seen when a walk happens to pass.
//
// Components (DTR-eq): union-find over evicted neighbours. They never split; what comes back is only subtracted.
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

struct Storage {
  // What a search looks at comes first, in one line of the cache.
  Id next = kNone;  // in the pool
  Id prev = kNone;
  std::int64_t bytes = 0;
  std::int64_t cost = 0;         // of the distinct ops that made its tensors
  std::int64_t touched = 0;      // on the clock
  std::int64_t evicted[2] = {};  // cost of the regions, by way
  bool resident = false;
  bool pinned = false;
  std::uint32_t locks = 0;
  std::uint32_t references = 0;  // from outside, to any of its tensors

  Id last_op = kNone;    // of those that made its tensors
  Id component = kNone;  // union-find node while evicted, or not yet computed
  std::uint64_t mark = 0;
  std::vector<Id> tensors;
  std::vector<Id> neighbours[2];  // by way: it was made from these; from it these were made
  Region region[2];
};

class Surroundings {
 public:
  Surroundings(std::vector<Storage>& storages, bool regions, bool components)
      : storages_(storages), regions_(regions), components_(components) {}

  void born(Id storage);
  void connect(Id from, Id to);
  void evicted(Id storage);
  void made_resident(const std::vector<Id>& storages);
  std::int64_t components_around(Id storage);

 private:
  struct Node {
    Id parent;
    std::int64_t cost;
    std::uint64_t mark = 0;
  };

  void absorb(Id base, Id gone, Way way);
  void rebuild(Id base, Way way);
  Id new_node(std::int64_t cost);
  Id root(Id node);

  std::vector<Storage>& storages_;
  bool regions_, components_;
  std::uint64_t mark_ = 0;
  std::vector<Node> nodes_;
  std::vector<Id> stack_, edges_;
};

}  // namespace coop::ideal
