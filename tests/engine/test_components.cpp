// Disjoint sets with costs, against plain sets.
#include <map>
#include <set>

#include "check.h"
#include "engine/lineage.h"

using namespace coop;

namespace {

// The same rules, slowly: a set stays joined until it is empty, and its cost is what its members
// added.
struct Model {
  std::map<std::uint32_t, int> group;  // of every node in use
  std::map<int, Seconds> cost;
  int next = 0;

  void add(std::uint32_t node, Seconds value) {
    CHECK(!group.contains(node));
    group[node] = ++next;
    cost[next] = value;
  }
  void join(std::uint32_t a, std::uint32_t b) {
    const int to = group[a], from = group[b];
    if (to == from) return;
    for (auto& [node, at] : group) {
      if (at == from) at = to;
    }
    cost[to] += cost[from];
    cost.erase(from);
  }
  void remove(std::uint32_t node, Seconds value) {
    cost[group[node]] -= value;
    group.erase(node);
  }
};

}  // namespace

TEST(sets_and_costs_are_those_of_plain_sets) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Components components;
    Model model;
    std::vector<std::pair<std::uint32_t, Seconds>> members;
    const std::size_t most = random.between(2, 60);
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t what = random.below(10);
      if (members.empty() || (what < 4 && members.size() < most)) {
        const Seconds cost = static_cast<Seconds>(random.between(1, 100));  // whole numbers: sums are exact
        const std::uint32_t node = components.add(cost);
        CHECK(node != 0);
        model.add(node, cost);
        members.emplace_back(node, cost);
      } else if (what < 7) {
        const std::uint32_t a = random.pick(members).first, b = random.pick(members).first;
        components.join(a, b);
        model.join(a, b);
      } else {
        const std::size_t i = random.below(members.size());
        components.remove(members[i].first, members[i].second);
        model.remove(members[i].first, members[i].second);
        members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
      }
      const auto [a, cost_a] = members.empty() ? std::pair<std::uint32_t, Seconds>{0, 0} : random.pick(members);
      if (!a) continue;
      const std::uint32_t b = random.pick(members).first;
      CHECK_EQUAL(components.cost(components.find(a)), model.cost[model.group[a]]);
      CHECK_EQUAL(components.find(a) == components.find(b), model.group[a] == model.group[b]);
    }
    for (const auto& [node, cost] : members) components.remove(node, cost);
    CHECK_EQUAL(components.size(), Components().size());
  }
}

TEST(nodes_are_recycled_over_many_cycles) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Components components;
    // One member that never leaves keeps its set alive; the others come, join and go.
    const std::uint32_t anchor = components.add(1);
    std::vector<std::uint32_t> members;
    for (int step = 0; step < 200000; ++step) {
      if (members.size() < 20) {
        members.push_back(components.add(1));
        components.join(members.back(), random.chance(50) ? anchor : random.pick(members));
      } else {
        const std::size_t i = random.below(members.size());
        components.remove(members[i], 1);
        members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
      }
      CHECK_AT_MOST(components.size(), 120u);
    }
  }
}

TEST(what_a_silent_member_keeps_is_given_back_when_it_leaves) {
  // Sets with deletion cannot always forget a former root: pairs join above a member that nobody
  // asks for, become its root and leave. One node for each stays behind, until the silent member is
  // asked for (paths are halved) or leaves.
  Components components;
  const std::uint32_t silent = components.add(1), asked = components.add(1);
  const std::uint32_t under = components.add(1), over = components.add(1), beside = components.add(1);
  components.join(under, silent);
  components.join(over, beside);
  components.join(over, under);
  components.join(over, asked);
  for (const std::uint32_t node : {under, over, beside}) components.remove(node, 1);
  for (int step = 0; step < 1000; ++step) {
    const std::uint32_t a = components.add(1), b = components.add(1);
    components.join(a, b);
    components.join(a, asked);
    components.remove(b, 1);
    components.remove(a, 1);
  }
  CHECK_AT_MOST(components.size(), 1010u);
  CHECK_EQUAL(components.cost(components.find(silent)), 2);
  for (int i = 0; i < 12; ++i) components.find(silent);
  CHECK_AT_MOST(components.size(), 8u);
  CHECK_EQUAL(components.find(silent), components.find(asked));
  components.remove(silent, 1);
  components.remove(asked, 1);
  CHECK_EQUAL(components.size(), Components().size());
}
