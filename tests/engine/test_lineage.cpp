// Lineage on random graphs: costs, walks and releases against brute force. The file is long because
// all of them use one brute-force graph.
#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "check.h"
#include "engine/chunk.h"
#include "engine/lineage.h"

using namespace coop;

namespace {

// A graph of ops without an engine: residence is a flag here. Costs are whole numbers, so that sums
// are exact.
class Graph {
 public:
  explicit Graph(CostModel model, std::uint32_t exact_limit = 1u << 30, bool needed_only = false)
      : options_(make_options(model, exact_limit, needed_only)),
        price(options_, stamps_),
        lineage(stamps_, price, [this](Storage& storage) { gone(storage); }, [this](Op&) { --ops; }) {}

  Storage* source() {
    Storage* storage = lineage.make_storage(1);
    add(storage);
    return storage;
  }
  std::vector<Storage*> op(std::vector<Storage*> inputs, std::size_t outputs, Seconds cost) {
    std::vector<Storage*> made;
    for (std::size_t i = 0; i < outputs; ++i) {
      made.push_back(lineage.make_storage(1));
      add(made.back());
    }
    lineage.make_op(nullptr, cost, inputs, made, InPlace::no);
    ++ops;
    return made;
  }
  // In place by renaming, as the engine does it. Returns the old version.
  Storage* overwrite(Storage* storage, std::vector<Storage*> inputs, Seconds cost) {
    Storage* old = lineage.split(*storage);
    all.push_back(old);
    price.evicted(*old);
    joined(*old);
    inputs.insert(inputs.begin(), old);
    lineage.make_op(nullptr, cost, inputs, std::vector<Storage*>{storage}, InPlace::on_old);
    ++ops;
    return old;
  }
  void evict(Storage* storage) {
    storage->block = nullptr;
    price.evicted(*storage);
    joined(*storage);
  }
  void restore(Storage* storage) {
    storage->block = &somewhere_;
    price.restored(*storage);
    parted(*storage);
  }
  void let_go(Storage* storage) {
    storage->held = false;
    price.unheld(*storage);
    lineage.reconsider(*storage);
  }

  // --- brute force -------------------------------------------------------------------------------------------------------

  Seconds exact(const Storage* storage) const {
    std::set<const Op*> ops_around;
    std::set<const Storage*> below;
    up(storage->producer, ops_around);
    down(storage, below);
    for (const Storage* next : below) ops_around.insert(next->producer);
    ops_around.erase(nullptr);
    Seconds sum = storage->producer->cost;
    for (const Op* op : ops_around) sum += op->cost;
    return sum;
  }
  Seconds union_find(const Storage* storage) const {
    std::set<int> sets;
    for (const Storage* next : neighbours(storage)) {
      if (const auto at = set_of_.find(next); at != set_of_.end()) sets.insert(at->second);
    }
    Seconds sum = storage->producer->cost;
    for (const int set : sets) sum += set_cost_.at(set);
    return sum;
  }
  std::set<Storage*> held_dependents(Storage* storage) const {
    std::set<Storage*> found, seen;
    std::vector<Storage*> todo{storage};
    while (!todo.empty()) {
      Storage* from = todo.back();
      todo.pop_back();
      for (Storage* output : children(from)) {
        if (!seen.insert(output).second) continue;
        if (output->held || output->claims.pins || output->claims.locks) {
          found.insert(output);
        } else {
          todo.push_back(output);
        }
      }
    }
    return found;
  }
  std::set<const Op*> missing(const Storage* storage) const {
    std::set<const Op*> found;
    std::vector<const Op*> todo{storage->producer};
    while (!todo.empty()) {
      const Op* op = todo.back();
      todo.pop_back();
      if (!found.insert(op).second) continue;
      for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
        const Storage* input = op->inputs()[i].storage;
        if (input->evicted()) todo.push_back(input->producer);
      }
    }
    return found;
  }

  std::vector<Storage*> children(const Storage* storage) const {
    std::vector<Storage*> found;
    for (const Edge* edge = storage->consumers; edge; edge = edge->next) {
      for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
        if (Storage* output = edge->op->outputs()[i]) found.push_back(output);
      }
    }
    return found;
  }

  std::vector<Storage*> where(auto condition) const {
    std::vector<Storage*> found;
    std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](Storage* s) { return condition(*s); });
    return found;
  }

 private:
  static Options make_options(CostModel cost, std::uint32_t exact_limit, bool needed_only) {
    Options options;
    options.needed_only = needed_only;
    options.cost = cost;
    options.exact_limit = exact_limit;
    return options;
  }

  const Options options_;
  Chunk around_;
  Block somewhere_{.chunk = &around_};
  std::map<const Storage*, int> set_of_;  // evicted storages
  std::map<int, Seconds> set_cost_;
  int next_set_ = 0;

  void add(Storage* storage) {
    storage->block = &somewhere_;
    storage->held = true;
    all.push_back(storage);
  }
  void gone(Storage& storage) {
    if (set_of_.contains(&storage)) parted(storage);
    all.erase(std::find(all.begin(), all.end(), &storage));
  }
  std::vector<const Storage*> neighbours(const Storage* storage) const {
    std::vector<const Storage*> found;
    if (const Op* op = storage->producer) {
      for (std::uint32_t i = 0; i < op->inputs_count; ++i) found.push_back(op->inputs()[i].storage);
    }
    for (const Storage* child : children(storage)) found.push_back(child);
    return found;
  }
  void joined(const Storage& storage) {
    const int set = set_of_[&storage] = ++next_set_;
    set_cost_[set] = storage.producer ? storage.producer->cost : 0;
    for (const Storage* next : neighbours(&storage)) {
      const auto at = set_of_.find(next);
      if (at == set_of_.end() || at->second == set) continue;
      const int other = at->second;
      set_cost_[set] += set_cost_[other];
      set_cost_.erase(other);
      for (auto& [member, of] : set_of_) {
        if (of == other) of = set;
      }
    }
  }
  void parted(const Storage& storage) {
    set_cost_[set_of_.at(&storage)] -= storage.producer ? storage.producer->cost : 0;
    set_of_.erase(&storage);
  }
  void up(const Op* op, std::set<const Op*>& found) const {
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      const Storage* input = op->inputs()[i].storage;
      if (input->evicted() && input->producer && found.insert(input->producer).second) up(input->producer, found);
    }
  }
  // Somebody holds it, or something evicted that somebody needs was made from it.
  bool needed(const Storage* storage) const {
    if (storage->held) return true;
    const auto all_children = children(storage);
    return std::any_of(all_children.begin(), all_children.end(),
                       [&](const Storage* child) { return child->evicted() && needed(child); });
  }
  void down(const Storage* storage, std::set<const Storage*>& found) const {
    for (const Storage* child : children(storage)) {
      if (options_.needed_only && !needed(child)) continue;
      if (child->evicted() && found.insert(child).second) down(child, found);
    }
  }

 public:
  std::vector<Storage*> all;
  int ops = 0;
  Stamps stamps_;
  Cost price;
  Lineage lineage;  // last: told of every end before the rest goes
};

bool recomputable(const Storage& storage) { return storage.resident() && storage.producer; }

// Anything that may happen to a graph, once.
void step(Graph& graph, check::Random& random, std::size_t most) {
  const std::uint64_t what = random.below(100);
  const auto resident = graph.where([](Storage& s) { return s.resident() && s.held; });
  const auto evictable = graph.where(recomputable);
  const auto evicted = graph.where([](Storage& s) { return s.evicted(); });
  if (graph.all.size() < 3) {
    graph.source();
  } else if (what < 25 && graph.all.size() < most && !resident.empty()) {
    std::vector<Storage*> inputs;
    for (std::uint64_t i = random.between(1, 3); i; --i) inputs.push_back(random.pick(resident));
    graph.op(inputs, random.between(1, 3), static_cast<Seconds>(random.between(1, 50)));
  } else if (what < 60 && !evictable.empty()) {
    graph.evict(random.pick(evictable));
  } else if (what < 80 && !evicted.empty()) {
    graph.restore(random.pick(evicted));
  } else if (what < 85 && !evictable.empty()) {
    if (Storage* storage = random.pick(evictable); storage->held) {
      Storage* input = random.pick(resident);
      graph.overwrite(storage, input == storage ? std::vector<Storage*>{} : std::vector<Storage*>{input},
                      static_cast<Seconds>(random.between(1, 50)));
    }
  } else if (what < 88 && !evictable.empty()) {
    Storage* storage = random.pick(evictable);
    graph.lineage.commit(*storage);
    graph.lineage.reconsider(*storage);
  } else if (what < 97) {
    if (Storage* storage = random.pick(graph.all); storage->held) graph.let_go(storage);
  } else {
    graph.lineage.sweep(random.between(1, 4));
  }
}

void drop_everything(Graph& graph) {
  while (!graph.all.empty() || graph.ops) {
    const std::vector<Storage*> held = graph.where([](Storage& s) { return s.held; });
    for (Storage* storage : held) graph.let_go(storage);
    graph.lineage.sweep(SIZE_MAX);
    CHECK(graph.where([](Storage& s) { return s.held; }).empty());
  }
}

}  // namespace

TEST(projected_cost_is_exact_and_stays_so_whatever_happens) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Graph graph(CostModel::exact, 1u << 30, seed % 2 == 0);
    for (int i = 0; i < 400; ++i) {
      step(graph, random, 40);
      for (Storage* storage : graph.where(recomputable)) {
        CHECK_EQUAL(graph.price.projected(*storage), graph.exact(storage));
      }
    }
    CHECK_EQUAL(graph.price.union_find_costs(), 0u);
    drop_everything(graph);
  }
}

TEST(projected_cost_by_union_find_is_the_sum_of_the_components_around) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Graph graph(CostModel::union_find);
    for (int i = 0; i < 400; ++i) {
      step(graph, random, 40);
      for (Storage* storage : graph.where(recomputable)) {
        CHECK_EQUAL(graph.price.projected(*storage), graph.union_find(storage));
      }
    }
    CHECK_EQUAL(graph.price.exact_costs(), 0u);
    drop_everything(graph);
  }
}

TEST(union_find_takes_over_where_too_much_is_evicted_and_caches_stay_right) {
  std::size_t exact = 0, taken_over = 0;
  for (const std::uint32_t limit : {0, 1, 3, 8}) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      const check::Context a("limit", limit), b("seed", seed);
      check::Random random(seed);
      Graph graph(CostModel::exact, limit, seed % 2 == 0);
      for (int i = 0; i < 400; ++i) {
        step(graph, random, 40);
        for (Storage* storage : graph.where(recomputable)) {
          const Seconds cost = graph.price.projected(*storage);
          if (cost != graph.exact(storage)) CHECK_EQUAL(cost, graph.union_find(storage));
        }
      }
      exact += graph.price.exact_costs();
      taken_over += graph.price.union_find_costs();
      drop_everything(graph);
    }
  }
  CHECK(exact > 1000 && taken_over > 1000);
}

TEST(own_cost_looks_at_nothing_else) {
  Graph graph(CostModel::own);
  Storage* source = graph.source();
  Storage* a = graph.op({source}, 1, 5)[0];
  Storage* b = graph.op({a}, 1, 7)[0];
  graph.evict(a);
  CHECK_EQUAL(graph.price.projected(*b), 7);
  graph.restore(a);
  drop_everything(graph);
}

TEST(costs_that_are_asked_for_again_come_from_the_cache) {
  Graph graph(CostModel::exact);
  Storage* last = graph.source();
  std::vector<Storage*> chain;
  for (int i = 0; i < 20; ++i) chain.push_back(last = graph.op({last}, 1, 1)[0]);
  for (int i = 0; i < 10; ++i) graph.evict(chain[static_cast<std::size_t>(i)]);
  for (int again = 0; again < 5; ++again) {
    for (std::size_t i = 10; i < 20; ++i) CHECK_EQUAL(graph.price.projected(*chain[i]), i == 10 ? 11 : 1);
  }
  CHECK_EQUAL(graph.price.exact_costs(), 10u);
  drop_everything(graph);
}

TEST(held_dependents_are_those_a_walk_over_everything_finds) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Graph graph(CostModel::exact);
    for (int i = 0; i < 120; ++i) step(graph, random, 60);
    for (Storage* storage : graph.all) {
      if (random.chance(5)) ++storage->claims.pins;
    }
    for (Storage* storage : graph.all) {
      std::vector<Storage*> found;
      graph.lineage.held_dependents(*storage, found);
      const std::set<Storage*> once(found.begin(), found.end());
      CHECK_EQUAL(once.size(), found.size());
      CHECK(once == graph.held_dependents(storage));
    }
    for (Storage* storage : std::vector<Storage*>(graph.all)) {
      if (storage->claims.pins) {
        storage->claims.pins = 0;
        graph.lineage.reconsider(*storage);
      }
    }
    drop_everything(graph);
  }
}

TEST(missing_ops_are_all_there_once_and_in_an_order_that_can_run) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Graph graph(CostModel::exact);
    for (int i = 0; i < 150; ++i) step(graph, random, 60);
    for (Storage* storage : graph.where([](Storage& s) { return s.evicted(); })) {
      std::vector<Op*> order;
      graph.lineage.missing(std::span(&storage, 1), order);
      std::set<const Op*> done;
      for (const Op* op : order) {
        for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
          const Storage* input = op->inputs()[i].storage;
          CHECK(input->resident() || done.contains(input->producer));
        }
        CHECK(done.insert(op).second);
      }
      CHECK(done == graph.missing(storage));
      CHECK_EQUAL(order.back(), storage->producer);
    }
    drop_everything(graph);
  }
}

TEST(links_and_counts_agree_after_anything) {
  for (std::uint64_t seed = 100; seed <= 120; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Graph graph(CostModel::exact);
    for (int i = 0; i < 400; ++i) {
      step(graph, random, 40);
      graph.lineage.sweep(SIZE_MAX);
      for (const Storage* storage : graph.all) graph.lineage.check(*storage);
      CHECK_EQUAL(graph.lineage.storages(), graph.all.size());
      CHECK_EQUAL(graph.lineage.ops(), graph.ops);
    }
    drop_everything(graph);
    CHECK_EQUAL(graph.lineage.storages(), 0u);
    CHECK_EQUAL(graph.lineage.ops(), 0u);
  }
}

TEST(check_notices_damage) {
  Graph graph(CostModel::exact);
  Storage* source = graph.source();
  Storage* made = graph.op({source}, 1, 1)[0];
  graph.lineage.check(*source);
  ++source->uses;
  CHECK_THROWS(std::logic_error, graph.lineage.check(*source));
  --source->uses;
  Block* block = source->block;
  source->block = nullptr;
  CHECK_THROWS(std::logic_error, graph.lineage.check(*source));  // nothing can bring it back
  source->block = block;
  made->held = false;
  CHECK_THROWS(std::logic_error, graph.lineage.check(*made));  // nobody needs it
  made->held = true;
  drop_everything(graph);
}

TEST(a_chain_of_100000_ops_is_dropped_in_portions_without_recursion_or_leaks) {
  for (const bool evicted : {false, true}) {
    const check::Context context("evicted", evicted);
    Options options;
    int dropped = 0, forgotten = 0;
    Stamps stamps;
    Cost price(options, stamps);
    Lineage lineage(stamps, price, [&](Storage&) { ++forgotten; }, [&](Op&) { ++dropped; });
    Chunk around;
    Block somewhere{.chunk = &around};
    Storage* last = lineage.make_storage(1);
    last->block = &somewhere;
    last->held = true;
    Storage* source = last;
    for (int i = 0; i < 100000; ++i) {
      Storage* next = lineage.make_storage(1);
      next->block = &somewhere;
      next->held = true;
      lineage.make_op(nullptr, 1, std::vector<Storage*>{last}, std::vector<Storage*>{next}, InPlace::no);
      last->held = false;
      if (evicted && last->producer) {
        last->block = nullptr;
        price.evicted(*last);
      }
      lineage.reconsider(*last);
      last = next;
    }
    CHECK_EQUAL(lineage.ops(), 100000u);
    CHECK_EQUAL(forgotten, 0);
    std::vector<Op*> order;
    Block* const block = std::exchange(last->block, nullptr);
    lineage.missing(std::span(&last, 1), order);
    last->block = block;
    CHECK_EQUAL(order.size(), evicted ? 100000u : 1u);
    std::vector<Storage*> found;
    lineage.held_dependents(*source, found);
    CHECK_EQUAL(found.size(), 1u);
    CHECK(price.projected(*last) >= 1);

    last->held = false;
    lineage.reconsider(*last);
    CHECK_EQUAL(dropped, 0);
    int portions = 0;
    while (!lineage.sweep(16)) {
      ++portions;
      CHECK_AT_MOST(dropped, portions * 16);
    }
    CHECK_EQUAL(dropped, 100000);
    CHECK_EQUAL(forgotten, 100001);
    CHECK_EQUAL(lineage.storages(), 0u);
    CHECK_EQUAL(lineage.ops(), 0u);
  }
}

TEST(one_source_with_100000_readers_is_dropped_without_leaks) {
  Options options;
  Stamps stamps;
  Cost price(options, stamps);
  Lineage lineage(stamps, price, [](Storage&) {}, [](Op&) {});
  Chunk around;
  Block somewhere{.chunk = &around};
  Storage* source = lineage.make_storage(1);
  source->block = &somewhere;
  std::vector<Storage*> made;
  for (int i = 0; i < 100000; ++i) {
    made.push_back(lineage.make_storage(1));
    made.back()->block = &somewhere;
    made.back()->held = true;
    lineage.make_op(nullptr, 1, std::vector<Storage*>{source, source}, std::vector<Storage*>{made.back()}, InPlace::no);
  }
  check::Random random(1);
  while (!made.empty()) {
    std::swap(random.pick(made), made.back());
    made.back()->held = false;
    lineage.reconsider(*made.back());
    made.pop_back();
    lineage.sweep(1);
  }
  CHECK_EQUAL(lineage.storages(), 0u);
  CHECK_EQUAL(lineage.ops(), 0u);
}
