// Simulated annealing over places. Costs and levels are updated with each move.
#include "plan/plan_search.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace coop {

PlanSearch::PlanSearch(PlanGraph graph, std::int64_t budget, const std::vector<Place>& start, std::uint64_t seed)
    : graph_(std::move(graph)), budget_(budget), random_(seed), events_(graph_.values.size()) {
  std::int64_t all = 0, bytes = 0;
  for (const PlanGraph::Node& node : graph_.nodes) all += node.cost;
  for (const PlanGraph::Value& value : graph_.values) {
    bytes += value.bytes;
    for (const std::uint32_t user : value.users) {
      if (user > value.node + 1 && may_run(value.node, user)) gaps_.emplace_back(value.node, user);
    }
  }
  std::sort(gaps_.begin(), gaps_.end());
  gaps_.erase(std::unique(gaps_.begin(), gaps_.end()), gaps_.end());
  price_ = bytes ? static_cast<double>(all) / static_cast<double>(bytes) : 0;

  const auto count = static_cast<std::uint32_t>(graph_.nodes.size());
  const Key end = key(count, count);
  keys_.push_back(end);
  levels_.push_back(static_cast<double>(graph_.base[count]));
  for (std::uint32_t value = 0; value < graph_.values.size(); ++value) {
    if (!graph_.values[value].kept) continue;
    events_[value].push_back({end, Event::read});
  }
  // Add the events of all first runs before any span is computed: a value that is read must have
  // been made.
  for (std::uint32_t node = 0; node < count; ++node) {
    const Key at = key(node, node);
    keys_.insert(keys_.end() - 1, at);
    levels_.insert(levels_.end() - 1, static_cast<double>(graph_.base[node] + graph_.nodes[node].scratch));
    for (const std::uint32_t v : graph_.nodes[node].inputs) events_[v].push_back({at, Event::read});
    for (const std::uint32_t v : graph_.nodes[node].overwritten) events_[v].push_back({at, Event::consume});
    for (const std::uint32_t v : graph_.nodes[node].outputs) events_[v].push_back({at, Event::make});
  }
  for (std::uint32_t value = 0; value < graph_.values.size(); ++value) {
    std::sort(events_[value].begin(), events_[value].end());
    std::vector<Span> spans;
    if (!spans_of(value, spans)) throw std::invalid_argument("a value is read before it is made");
    for (const Span& span : spans) shift(span, graph_.values[value].bytes);
  }
  over_ = 0;
  for (const double level : levels_) over_ += over_at(static_cast<std::int64_t>(level));
  // One place may need another, so they are tried again until no more can be added.
  std::vector<Place> waiting = start;
  std::sort(waiting.begin(), waiting.end(),
            [](const Place& a, const Place& b) { return std::pair(a.second, a.first) < std::pair(b.second, b.first); });
  for (bool some = true; some && !waiting.empty();) {
    some = false;
    std::vector<Place> remaining;
    for (const Place& place : waiting) {
      if (may_run(place.first, place.second) && add(place)) {
        some = true;
      } else {
        remaining.push_back(place);
      }
    }
    waiting = std::move(remaining);
  }
  if (waiting.empty()) keep_if_best();
}

bool PlanSearch::may_run(std::uint32_t node, std::uint32_t stage) const {
  const std::int64_t last = graph_.nodes[node].last;
  return node < stage && (last < 0 || static_cast<std::int64_t>(stage) <= last);
}

std::size_t PlanSearch::index_of(Key at) const {
  return static_cast<std::size_t>(std::lower_bound(keys_.begin(), keys_.end(), at) - keys_.begin());
}

// Where a value is in memory: from where it is made until it is last read before it is made again
// or overwritten. False: it is read where it is absent.
bool PlanSearch::spans_of(std::uint32_t value, std::vector<Span>& spans) const {
  spans.clear();
  bool present = false;
  for (const Event& event : events_[value]) {
    switch (event.kind) {
      case Event::read:
        if (!present) return false;
        spans.back().last = event.at;
        break;
      case Event::consume:
        // From here on its bytes belong to the output. So its own span ends one computation
        // earlier.
        if (!present) return false;
        spans.back().last = event.at - 1;
        present = false;
        break;
      case Event::make:
        spans.push_back({event.at, event.at});
        present = true;
        break;
    }
  }
  return true;
}

namespace {

// Most of the time is spent here. Doubles hold these integers exactly, and are compared several at
// a time (SIMD).
__attribute__((optimize("O3,fast-math"))) double shift_all(double* levels, std::size_t count, double bytes,
                                                           double budget) {
  double change = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double before = levels[i], now = before + bytes;
    levels[i] = now;
    const double over = now - budget, was = before - budget;
    change += (over > 0 ? over : 0) - (was > 0 ? was : 0);
  }
  return change;
}

}  // namespace

void PlanSearch::shift(const Span& span, std::int64_t bytes) {
  const std::size_t first = index_of(span.first), end = index_of(span.last + 1);
  if (first < end) {
    over_ += static_cast<std::int64_t>(
        shift_all(levels_.data() + first, end - first, static_cast<double>(bytes), static_cast<double>(budget_)));
  }
}

// The level of the new computation: the values that are in memory both before and after it.
void PlanSearch::insert_computation(Key at, std::uint32_t node) {
  const std::size_t i = index_of(at);
  const auto next = static_cast<std::uint32_t>(keys_[i]);
  const auto stage = static_cast<std::uint32_t>(keys_[i] >> 32);
  std::int64_t level = static_cast<std::int64_t>(levels_[i]) - graph_.base[stage];
  if (i + 1 < keys_.size()) {
    const PlanGraph::Node& behind = graph_.nodes[next];
    level -= behind.scratch;
    for (const std::uint32_t v : behind.outputs) level -= graph_.values[v].bytes;
    for (const std::uint32_t v : behind.overwritten) level += graph_.values[v].bytes;
  }
  level += graph_.base[at >> 32] + graph_.nodes[node].scratch;
  keys_.insert(keys_.begin() + static_cast<std::ptrdiff_t>(i), at);
  levels_.insert(levels_.begin() + static_cast<std::ptrdiff_t>(i), static_cast<double>(level));
  over_ += over_at(level);
}

void PlanSearch::remove_computation(Key at) {
  const std::size_t i = index_of(at);
  over_ -= over_at(static_cast<std::int64_t>(levels_[i]));
  keys_.erase(keys_.begin() + static_cast<std::ptrdiff_t>(i));
  levels_.erase(levels_.begin() + static_cast<std::ptrdiff_t>(i));
}

void PlanSearch::put(std::uint32_t value, Event event, bool in) {
  std::vector<Event>& events = events_[value];
  const auto place = std::lower_bound(events.begin(), events.end(), event);
  if (in) {
    events.insert(place, event);
  } else {
    events.erase(place);
  }
}

// Adds or removes a computation. False: a value would be read where it is absent; nothing has
// changed.
bool PlanSearch::change(Key at, std::uint32_t number, bool on) {
  const PlanGraph::Node& node = graph_.nodes[number];
  const auto put_all = [&](bool in) {
    for (const std::uint32_t v : node.inputs) put(v, {at, Event::read}, in);
    for (const std::uint32_t v : node.overwritten) put(v, {at, Event::consume}, in);
    for (const std::uint32_t v : node.outputs) put(v, {at, Event::make}, in);
  };
  const auto for_each_touched = [&](auto visit) {
    std::size_t i = 0;
    for (const std::uint32_t value : node.inputs) {
      if (!visit(value, i++)) return false;
    }
    for (const std::uint32_t value : node.outputs) {
      if (!visit(value, i++)) return false;
    }
    return true;
  };
  before_.resize(std::max(before_.size(), node.inputs.size() + node.outputs.size()));
  after_.resize(before_.size());
  for_each_touched([&](std::uint32_t value, std::size_t i) { return spans_of(value, before_[i]); });
  put_all(on);
  if (!for_each_touched([&](std::uint32_t value, std::size_t i) { return spans_of(value, after_[i]); })) {
    put_all(!on);
    return false;
  }
  if (on) insert_computation(at, number);
  for_each_touched([&](std::uint32_t value, std::size_t i) {
    exchange(before_[i], after_[i], graph_.values[value].bytes);
    return true;
  });
  if (!on) remove_computation(at);
  return true;
}

// Before and after differ in a span or two: the levels under the others are not visited.
void PlanSearch::exchange(const std::vector<Span>& before, const std::vector<Span>& after, std::int64_t bytes) {
  std::size_t head = 0, tail = 0;
  const std::size_t common = std::min(before.size(), after.size());
  while (head < common && before[head] == after[head]) ++head;
  while (head + tail < common && before[before.size() - 1 - tail] == after[after.size() - 1 - tail]) ++tail;
  if (before.size() == 1 + head + tail && after.size() == 1 + head + tail && before[head].first == after[head].first) {
    // The most common case: the value's last read is later or earlier.
    const Key sooner = std::min(before[head].last, after[head].last),
              later = std::max(before[head].last, after[head].last);
    shift({sooner + 1, later}, before[head].last < after[head].last ? bytes : -bytes);
    return;
  }
  for (std::size_t i = head; i + tail < before.size(); ++i) shift(before[i], -bytes);
  for (std::size_t i = head; i + tail < after.size(); ++i) shift(after[i], bytes);
}

bool PlanSearch::add(Place place) {
  const Key at = key(place.second, place.first);
  if (const std::size_t i = index_of(at); keys_[i] == at) return false;
  if (!change(at, place.first, true)) return false;
  places_.push_back(place);
  cost_ += graph_.nodes[place.first].cost;
  return true;
}

bool PlanSearch::remove(Place place) {
  if (!change(key(place.second, place.first), place.first, false)) return false;
  std::iter_swap(std::find(places_.begin(), places_.end(), place), places_.end() - 1);
  places_.pop_back();
  cost_ -= graph_.nodes[place.first].cost;
  return true;
}

double PlanSearch::energy(std::int64_t cost, std::int64_t over) const {
  return static_cast<double>(cost) + price_ * static_cast<double>(over);
}

void PlanSearch::keep_if_best() {
  if (over_ || (has_best_ && cost_ >= best_cost_)) return;
  has_best_ = true;
  best_ = places_;
  best_cost_ = cost_;
}

// A random place to add: half the time where a value is read by a first run, else where a node that
// reads it runs again.
Place PlanSearch::pick_place() {
  if (places_.empty() || random_() % 2) return gaps_[random_() % gaps_.size()];
  const Place& reader = places_[random_() % places_.size()];
  const std::vector<std::uint32_t>& inputs = graph_.nodes[reader.first].inputs;
  if (inputs.empty()) return gaps_[random_() % gaps_.size()];
  return {graph_.values[inputs[random_() % inputs.size()]].node, reader.second};
}

void PlanSearch::run(std::uint64_t moves, double hot, double cold) {
  if (gaps_.empty()) return;
  std::uniform_real_distribution<double> chance(0, 1);
  const double cooling = std::pow(cold / hot, 1.0 / static_cast<double>(std::max<std::uint64_t>(moves, 1)));
  double temperature = hot;
  for (std::uint64_t move = 0; move < moves; ++move, temperature *= cooling) {
    const std::int64_t cost = cost_, over = over_;
    const std::uint64_t kind = random_() % 4;  // add, remove, or exchange
    Place added, removed;
    bool adds = false, removes = false;
    if (kind != 0 && !places_.empty()) removed = places_[random_() % places_.size()];
    if (kind != 1) {
      added = pick_place();
      adds = may_run(added.first, added.second) && add(added);
    }
    if (kind != 0 && places_.size() > (adds ? 1 : 0)) removes = removed != added && remove(removed);
    if (!adds && !removes) continue;
    const double more = energy(cost_, over_) - energy(cost, over);
    if (more <= 0 || chance(random_) < std::exp(-more / temperature)) {
      // While the plan is above the budget, a byte above it gets more expensive; while it fits,
      // cheaper.
      price_ *= over_ ? 1.0002 : 0.9998;
      keep_if_best();
      continue;
    }
    if (removes) add(removed);
    if (adds) remove(added);
  }
}

void PlanSearch::check() const {
  std::vector<double> levels;
  for (const Key at : keys_) {
    const auto stage = static_cast<std::uint32_t>(at >> 32), node = static_cast<std::uint32_t>(at);
    const std::int64_t scratch = node < graph_.nodes.size() ? graph_.nodes[node].scratch : 0;
    levels.push_back(static_cast<double>(graph_.base[stage] + scratch));
  }
  std::vector<Span> spans;
  for (std::uint32_t value = 0; value < graph_.values.size(); ++value) {
    if (!spans_of(value, spans)) throw std::logic_error("a value is read where it is not");
    for (const Span& span : spans) {
      for (std::size_t i = index_of(span.first); i < keys_.size() && keys_[i] <= span.last; ++i) {
        levels[i] += static_cast<double>(graph_.values[value].bytes);
      }
    }
  }
  std::int64_t over = 0, cost = 0;
  for (const double level : levels) over += over_at(static_cast<std::int64_t>(level));
  for (const Place& place : places_) cost += graph_.nodes[place.first].cost;
  if (levels != levels_ || over != over_ || cost != cost_ || keys_.size() != graph_.nodes.size() + places_.size() + 1) {
    throw std::logic_error("the books of the search are wrong");
  }
}

}  // namespace coop
