// Disjoint sets of evicted storages with the sum of their costs (DTR, appendix on e-hat).
//
// Nodes are reference-counted and recycled. Removing a storage subtracts its cost but does not
// split its set: a set ends when it is empty.
#pragma once

#include <vector>

#include "engine/types.h"

namespace coop {

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

}  // namespace coop
