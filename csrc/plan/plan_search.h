// A local search for plans: which nodes are run again, and where.
//
// A plan is a set of places. A place (node, stage) means: the node runs again just before the first
// run of node `stage`. Everything else follows: a value stays in memory from where it is made until
// it is last read before it is made again. So the search may add, remove and exchange places by
// simulated annealing. A plan may exceed the budget on the way, at a cost per byte; a plan that is
// kept may not.
//
// A move changes one computation and the few values that its node reads and makes. Only the spans
// of these values are computed anew, and the levels under the parts that changed.
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
    std::int64_t last = -1;                      // the last stage in which it can run again; -1: any
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

  // Goes on for about so many moves while the temperature falls from `hot` to `cold` (in units of
  // cost).
  void run(std::uint64_t moves, double hot, double cold);

  // The cheapest plan within the budget so far; null if there was none.
  const std::vector<Place>* best() const { return has_best_ ? &best_ : nullptr; }
  std::int64_t best_cost() const { return best_cost_; }

  // Throws std::logic_error unless costs and levels are what going through the whole sequence
  // gives.
  void check() const;

 private:
  // A computation, or the end. Keys sort in the order of the sequence: in a stage, the nodes that
  // run again come before the stage's own node.
  using Key = std::uint64_t;
  static Key key(std::uint32_t stage, std::uint32_t node) { return static_cast<Key>(stage) << 32 | node; }

  // What happens to a value at a computation.
  struct Event {
    enum Kind : std::uint8_t { read, consume, make };  // a node that consumes a value reads it too
    Key at;
    Kind kind;
    bool operator<(const Event& other) const { return at < other.at || (at == other.at && kind < other.kind); }
  };
  struct Span {
    Key first, last;  // the computations between which the value is in memory
    bool operator==(const Span&) const = default;
  };

  bool may_run(std::uint32_t node, std::uint32_t stage) const;
  bool add(Place place);
  bool remove(Place place);
  bool change(Key at, std::uint32_t node, bool on);
  void put(std::uint32_t value, Event event, bool in);
  void exchange(const std::vector<Span>& before, const std::vector<Span>& after, std::int64_t bytes);
  void insert_computation(Key at, std::uint32_t node);
  void remove_computation(Key at);
  bool spans_of(std::uint32_t value, std::vector<Span>& spans) const;
  void shift(const Span& span, std::int64_t bytes);
  std::size_t index_of(Key at) const;
  std::int64_t over_at(std::int64_t level) const { return level > budget_ ? level - budget_ : 0; }
  Place pick_place();
  double energy(std::int64_t cost, std::int64_t over) const;
  void keep_if_best();

  const PlanGraph graph_;
  const std::int64_t budget_;
  std::mt19937_64 random_;
  std::vector<std::vector<Event>> events_;  // by value, in order
  std::vector<Key> keys_;                   // all computations, in order; the end is the last
  std::vector<double> levels_;              // bytes in memory at each computation
  std::vector<Place> places_;               // where nodes run again, in any order
  std::vector<Place> gaps_;                 // places to try first: a value's node, where the value is read
  std::int64_t cost_ = 0, over_ = 0;        // over_: bytes above the budget, summed over all computations
  double price_ = 0;                        // of a byte above the budget
  bool has_best_ = false;
  std::vector<Place> best_;
  std::int64_t best_cost_ = 0;
  std::vector<std::vector<Span>> before_, after_;  // scratch of `change`: spans of the values it touches
};

}  // namespace coop
