#include "simulate/surroundings.h"

#include <algorithm>

namespace coop::ideal {
namespace {

constexpr std::size_t index(Way way) { return static_cast<std::size_t>(way); }
constexpr Way opposite(Way way) { return way == Way::up ? Way::down : Way::up; }

}  // namespace

void Surroundings::born(Id storage) {
  // Until its op has run it counts as an evicted neighbour that costs nothing.
  if (components_) storages_[storage].component = new_node(0);
}

void Surroundings::connect(Id from, Id to, bool new_storage) {
  if (regions_ && !new_storage && !views_of_several_) {
    for (Id id = 0; id < storages_.size(); ++id) refresh(id);
    views_of_several_ = true;
  }
  storages_[from].neighbours[index(Way::down)].push_back(to);
  storages_[to].neighbours[index(Way::up)].push_back(from);
}

void Surroundings::cost_grows(Id storage) {
  if (!regions_ || storages_[storage].resident) return;
  // The regions that contain it keep the old cost until they are walked.
  Region below;
  walk(storage, Way::down, below);
  for (const Id other : below.edge) refresh(other);
  cost_grew_ = true;
}

void Surroundings::evicted(Id storage) {
  Storage& gone = storages_[storage];
  if (regions_) {
    refresh(storage);
    // By index, because the edge may grow: with views of several storages, a storage may be at its
    // own edge.
    const std::vector<Id>& above = gone.region[index(Way::up)].edge;
    for (std::size_t i = 0; i < above.size(); ++i) absorb(above[i], storage, Way::down);
    const std::vector<Id>& below = gone.region[index(Way::down)].edge;
    for (std::size_t i = 0; i < below.size(); ++i) {
      if (cost_grew_ || views_of_several_) {
        absorb(below[i], storage, Way::up);
      } else {
        storages_[below[i]].stale = true;
      }
    }
    for (const Way way : {Way::up, Way::down}) {
      gone.region[index(way)] = Region{};
      gone.evicted[index(way)] = 0;
    }
  }
  if (components_) {
    gone.component = new_node(gone.cost);
    for (const Way way : {Way::up, Way::down}) {
      for (const Id other : gone.neighbours[index(way)]) {
        if (storages_[other].resident) continue;
        const Id theirs = root(storages_[other].component);
        const Id ours = root(gone.component);
        if (theirs == ours) continue;
        nodes_[theirs].parent = ours;
        nodes_[ours].cost += nodes_[theirs].cost;
      }
    }
  }
}

void Surroundings::made_resident(const std::vector<Id>& storages, bool at_once) {
  if (regions_ && at_once && !views_of_several_) {
    for (const Id storage : storages) meet(storage);
  } else if (regions_) {
    for (const Id storage : storages) {
      rebuild(storage, Way::up);
      rebuild(storage, Way::down);
    }
    for (const Way way : {Way::up, Way::down}) {
      edge_.clear();
      for (const Id storage : storages) {
        const std::vector<Id>& edge = storages_[storage].region[index(way)].edge;
        edge_.insert(edge_.end(), edge.begin(), edge.end());
      }
      std::sort(edge_.begin(), edge_.end());
      edge_.erase(std::unique(edge_.begin(), edge_.end()), edge_.end());
      for (const Id storage : edge_) {
        if (way == Way::up || views_of_several_) {
          rebuild(storage, opposite(way));
        } else {
          storages_[storage].stale = true;
        }
      }
    }
  }
  if (components_) {
    for (const Id storage : storages) {
      // Its present cost, even if views were made since it was evicted, or if it was never added.
      nodes_[root(storages_[storage].component)].cost -= storages_[storage].cost;
      storages_[storage].component = kNone;
    }
  }
}

// The cost of the components next to this storage, each counted once.
std::int64_t Surroundings::components_around(Id storage) {
  ++mark_;
  std::int64_t cost = 0;
  for (const std::vector<Id>& neighbours : storages_[storage].neighbours) {
    for (const Id other : neighbours) {
      if (storages_[other].resident) continue;
      Node& node = nodes_[root(storages_[other].component)];
      if (node.mark == mark_) continue;
      node.mark = mark_;
      cost += node.cost;
    }
  }
  return cost;
}

void Surroundings::refresh(Id storage) {
  if (storages_[storage].stale) rebuild(storage, Way::up);
}

// A new storage whose neighbours are all resident: it is at their edge, they are at its edge, and
// nothing else changes.
void Surroundings::meet(Id storage) {
  for (const Id above : storages_[storage].neighbours[index(Way::up)]) {
    if (storages_[above].pinned) continue;
    storages_[storage].region[index(Way::up)].edge.push_back(above);
    storages_[above].region[index(Way::down)].edge.push_back(storage);
  }
}

// `gone` was at the edge of the region of `base`, and is now inside it, with its own region.
void Surroundings::absorb(Id base, Id gone, Way way) {
  Storage& keeper = storages_[base];
  if (keeper.pinned) return;  // it never leaves, so its region is never needed
  if (way == Way::up && keeper.stale) return;
  Region& region = keeper.region[index(way)];
  const Region& more = storages_[gone].region[index(way)];

  std::erase(region.edge, gone);
  ++mark_;
  for (const Id storage : region.edge) storages_[storage].mark = mark_;
  for (std::size_t i = 0; i < more.edge.size(); ++i) {
    Storage& storage = storages_[more.edge[i]];
    if (storage.mark != mark_) region.edge.push_back(more.edge[i]);
    storage.mark = mark_;
  }

  ++mark_;
  for (const Id storage : region.inside) storages_[storage].mark = mark_;
  const bool known = storages_[gone].mark == mark_;
  storages_[gone].mark = mark_;
  std::int64_t cost = storages_[gone].cost;
  for (std::size_t i = 0; i < more.inside.size(); ++i) {
    const Id other = more.inside[i];
    if (storages_[other].mark == mark_) continue;
    region.inside.push_back(other);
    cost += storages_[other].cost;
  }
  if (!known) region.inside.push_back(gone);
  keeper.evicted[index(way)] += cost;
}

void Surroundings::rebuild(Id base, Way way) {
  Storage& centre = storages_[base];
  if (centre.pinned) return;
  if (way == Way::up) centre.stale = false;
  centre.evicted[index(way)] = walk(base, way, centre.region[index(way)]);
}

// Computes the region and returns its cost.
std::int64_t Surroundings::walk(Id base, Way way, Region& region) {
  region.inside.clear();
  region.edge.clear();
  std::int64_t cost = 0;
  storages_[base].mark = ++mark_;
  stack_.assign(1, base);
  while (!stack_.empty()) {
    const Id at = stack_.back();
    stack_.pop_back();
    for (const Id other : storages_[at].neighbours[index(way)]) {
      Storage& storage = storages_[other];
      if (storage.mark == mark_) continue;
      storage.mark = mark_;
      if (storage.resident) {
        if (!storage.pinned) region.edge.push_back(other);
      } else {
        cost += storage.cost;
        region.inside.push_back(other);
        stack_.push_back(other);
      }
    }
  }
  return cost;
}

Id Surroundings::new_node(std::int64_t cost) {
  const Id id = static_cast<Id>(nodes_.size());
  nodes_.push_back({id, cost});
  return id;
}

Id Surroundings::root(Id node) {
  while (nodes_[node].parent != node) {
    nodes_[node].parent = nodes_[nodes_[node].parent].parent;
    node = nodes_[node].parent;
  }
  return node;
}

}  // namespace coop::ideal
