// What is evicted around a storage, as the ideal simulator's policies count it.
//
// Regions (DTR, MSPS): for each resident storage the evicted storages it reaches, through evicted ones, upwards and
// downwards; and the resident ones where that ends, its edge. By the rules, an eviction merges the regions on either side
// of it; what an op makes resident is walked anew, and so is what lies at its edges; nothing else is looked at again. An
// op that waits for its inputs is seen by the walks that happen to pass, at the costs of that moment.
//
// Most of these walks are never asked for. So a region upwards, which no waiting op can be in, may be stale: it is then
// what a walk would find, and walked when somebody needs it.
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

struct alignas(64) Storage {
  // What searches and walks look at comes first, in one line of the cache.
  Id next = kNone;  // in the pool
  Id prev = kNone;
  std::int64_t bytes = 0;
  std::int64_t cost = 0;         // of the distinct ops that made its tensors
  std::int64_t touched = 0;      // on the clock
  std::int64_t evicted[2] = {};  // cost of the regions, by way
  std::uint32_t mark = 0;        // of the last walk that passed
  bool resident = false;
  bool pinned = false;
  bool stale = false;  // the region upwards has to be walked
  std::uint32_t locks = 0;

  std::vector<Id> neighbours[2];  // by way: it was made from these; from it these were made
  std::uint32_t references = 0;   // from outside, to any of its tensors
  Id last_op = kNone;             // of those that made its tensors
  Id component = kNone;           // union-find node while evicted, or not yet computed
  std::vector<Id> tensors;
  Region region[2];
};

class Surroundings {
 public:
  Surroundings(std::vector<Storage>& storages, bool regions, bool components)
      : storages_(storages), regions_(regions), components_(components) {}

  void born(Id storage);
  // Something is made from a storage, and becomes part of another one: a view of several, if that one is not new.
  void connect(Id from, Id to, bool new_storage);
  // The cost of a storage is about to grow: a view of it was made.
  void cost_grows(Id storage);
  // The op that was introduced has run: from now on nothing waits.
  void settled() { cost_grew_ = false; }

  void evicted(Id storage);
  // `at_once`: by a new op that found its inputs there.
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
  bool views_of_several_ = false;  // then regions may differ from what a walk finds, and nothing may be put off
  bool cost_grew_ = false;         // of an evicted storage, since the regions that hold it were walked
  std::uint32_t mark_ = 0;
  std::vector<Node> nodes_;
  std::vector<Id> stack_, edge_;
};

}  // namespace coop::ideal
