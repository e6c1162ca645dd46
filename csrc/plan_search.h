// A local search for plans: which nodes are run again, and where.
//
// A plan is a set of places: (node, stage), a node that is run again before the first run of another. Everything else
// follows: a value stays from where it is made to where it is last read before it is made again. So any set of places is a
// plan, and the search adds, takes away and exchanges places by simulated annealing; bytes above the budget are a cost
// like any other until a plan is kept, which must have none.
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace coop {

using Place = std::pair<std::uint32_t, std::uint32_t>;  // a node, a stage

struct PlanGraph {
  struct Node {
    std::int64_t cost = 0, scratch = 0;
    std::int64_t last = -1;                      // the last stage where it can be run again; -1: any
    std::vector<std::uint32_t> inputs, outputs;  // values
    std::vector<std::uint32_t> overwritten;
  };
  struct Value {
    std::int64_t bytes = 0;
    std::uint32_t node = 0;
    bool kept = false;
    std::vector<std::uint32_t> users;
  };
  std::vector<Node> nodes;
  std::vector<Value> values;
  std::vector<std::int64_t> base;
};

class PlanSearch {
 public:
  PlanSearch(PlanGraph graph, std::int64_t budget, const std::vector<Place>& start, std::uint64_t seed);

  // Goes on for about so many moves while the temperature falls from `hot` to `cold` (in units of cost).
  void run(std::uint64_t moves, double hot, double cold);

  // The cheapest plan within the budget so far; null if there was none.
  const std::vector<Place>* best() const { return has_best_ ? &best_ : nullptr; }
  std::int64_t best_cost() const { return best_cost_; }

 private:
  struct Verdict {
    bool legal = false;
    std::int64_t over = 0;  // bytes above the budget, summed over all computations
  };
  Verdict judge();
  bool may_run(std::uint32_t node, std::uint32_t stage) const;
  bool add(Place place);
  bool remove(Place place);
  Place pick_place();
  double energy(std::int64_t cost, std::int64_t over) const;
  void keep_if_best();

  const PlanGraph graph_;
  const std::int64_t budget_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::uint32_t>> again_;  // for each stage, nodes in order
  std::vector<Place> places_;                      // the same, in any order
  std::vector<Place> gaps_;  // where adding makes sense to begin with: a value's node, where it is read
  std::int64_t cost_ = 0, over_ = 0;
  double price_ = 0;  // of a byte above the budget
  bool has_best_ = false;
  std::vector<Place> best_;
  std::int64_t best_cost_ = 0;
  // Scratch of judge.
  std::vector<std::int64_t> change_;
  std::vector<std::uint32_t> made_, read_;
  std::vector<std::uint8_t> state_;
};

}  // namespace coop
