#include "engine/components.h"

#include <algorithm>
#include <utility>

namespace coop {

std::uint32_t Components::add(Seconds cost) {
  std::uint32_t node;
  if (free_.empty()) {
    node = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    node = free_.back();
    free_.pop_back();
  }
  nodes_[node] = {node, 1, cost};
  return node;
}

std::uint32_t Components::find(std::uint32_t node) {
  while (nodes_[node].parent != node) {
    const std::uint32_t parent = nodes_[node].parent;
    const std::uint32_t grandparent = nodes_[parent].parent;
    if (grandparent != parent) {  // halve the path
      nodes_[node].parent = grandparent;
      ++nodes_[grandparent].references;
      release(parent);
    }
    node = nodes_[node].parent;
  }
  return node;
}

void Components::join(std::uint32_t a, std::uint32_t b) {
  a = find(a);
  b = find(b);
  if (a == b) return;
  if (nodes_[a].references < nodes_[b].references) std::swap(a, b);
  nodes_[b].parent = a;
  ++nodes_[a].references;
  nodes_[a].cost += nodes_[b].cost;
}

void Components::remove(std::uint32_t node, Seconds cost) {
  Node& root = nodes_[find(node)];
  root.cost = std::max(0.0, root.cost - cost);
  release(node);
}

void Components::release(std::uint32_t node) {
  while (--nodes_[node].references == 0) {
    const std::uint32_t parent = nodes_[node].parent;
    free_.push_back(node);
    if (parent == node) return;
    node = parent;
  }
}

}  // namespace coop
