// Annealing over places. A move is judged by going through the whole sequence: that is a few microseconds for a hundred nodes,
// and leaves no room for mistakes of bookkeeping.
#include "plan_search.h"

#include <algorithm>
#include <cmath>

namespace coop {

PlanSearch::PlanSearch(PlanGraph graph, std::int64_t budget, const std::vector<Place>& start, std::uint64_t seed)
    : graph_(std::move(graph)), budget_(budget), random_(seed), again_(graph_.nodes.size() + 1) {
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
  made_.resize(graph_.values.size());
  read_.resize(graph_.values.size());
  state_.resize(graph_.values.size());
  for (const Place& place : start) add(place);
  const Verdict verdict = judge();
  over_ = verdict.over;
  if (verdict.legal) keep_if_best();
}

bool PlanSearch::may_run(std::uint32_t node, std::uint32_t stage) const {
  const std::int64_t last = graph_.nodes[node].last;
  return node < stage && (last < 0 || static_cast<std::int64_t>(stage) <= last);
}

bool PlanSearch::add(Place place) {
  std::vector<std::uint32_t>& stage = again_[place.second];
  const auto at = std::lower_bound(stage.begin(), stage.end(), place.first);
  if (at != stage.end() && *at == place.first) return false;
  stage.insert(at, place.first);
  places_.push_back(place);
  cost_ += graph_.nodes[place.first].cost;
  return true;
}

bool PlanSearch::remove(Place place) {
  std::vector<std::uint32_t>& stage = again_[place.second];
  const auto at = std::lower_bound(stage.begin(), stage.end(), place.first);
  if (at == stage.end() || *at != place.first) return false;
  stage.erase(at);
  std::iter_swap(std::find(places_.begin(), places_.end(), place), places_.end() - 1);
  places_.pop_back();
  cost_ -= graph_.nodes[place.first].cost;
  return true;
}

PlanSearch::Verdict PlanSearch::judge() {
  enum : std::uint8_t { absent, present };
  const std::size_t count = graph_.nodes.size();
  change_.assign(count + places_.size() + 2, 0);
  std::fill(state_.begin(), state_.end(), absent);
  const auto close = [&](std::uint32_t value, std::uint32_t end) {  // the first computation that does not see it
    change_[made_[value]] += graph_.values[value].bytes;
    change_[end] -= graph_.values[value].bytes;
  };
  std::uint32_t at = 0;
  const auto compute = [&](std::uint32_t number, std::int64_t base) {
    const PlanGraph::Node& node = graph_.nodes[number];
    change_[at] += base + node.scratch;
    change_[at + 1] -= base + node.scratch;
    for (const std::uint32_t value : node.inputs) {
      if (state_[value] == absent) return false;
      read_[value] = at;
    }
    for (const std::uint32_t value : node.overwritten) {
      close(value, at);
      state_[value] = absent;
    }
    for (const std::uint32_t value : node.outputs) {
      if (state_[value] == present) close(value, read_[value] + 1);
      state_[value] = present;
      made_[value] = read_[value] = at;
    }
    ++at;
    return true;
  };
  for (std::uint32_t stage = 0; stage <= count; ++stage) {
    for (const std::uint32_t number : again_[stage]) {
      if (!compute(number, graph_.base[stage])) return {};
    }
    if (stage < count && !compute(stage, graph_.base[stage])) return {};
  }
  change_[at] += graph_.base[count];
  for (std::uint32_t value = 0; value < graph_.values.size(); ++value) {
    if (state_[value] == present) {
      close(value, graph_.values[value].kept ? at + 1 : read_[value] + 1);
    } else if (graph_.values[value].kept) {
      return {};
    }
  }
  Verdict verdict{true, 0};
  std::int64_t level = 0;
  for (std::uint32_t i = 0; i <= at; ++i) {
    level += change_[i];
    if (level > budget_) verdict.over += level - budget_;
  }
  return verdict;
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

// Where a value is read for the first time, or, as often, where something that reads it is run again.
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
  std::vector<Place> added, removed;
  for (std::uint64_t move = 0; move < moves; ++move) {
    const double temperature =
        hot * std::pow(cold / hot, static_cast<double>(move) / static_cast<double>(std::max<std::uint64_t>(moves, 1)));
    added.clear();
    removed.clear();
    const std::int64_t cost = cost_, over = over_;
    const std::uint64_t kind = random_() % 4;  // add, take away, or exchange
    if (kind != 0 && !places_.empty()) {
      const Place place = places_[random_() % places_.size()];
      if (remove(place)) removed.push_back(place);
    }
    if (kind != 1) {
      const Place place = pick_place();
      if (may_run(place.first, place.second) && add(place)) added.push_back(place);
    }
    if (added.empty() && removed.empty()) continue;
    const Verdict verdict = judge();
    const double more = verdict.legal ? energy(cost_, verdict.over) - energy(cost, over) : 0;
    if (verdict.legal && (more <= 0 || chance(random_) < std::exp(-more / temperature))) {
      over_ = verdict.over;
      // Where plans that fit are rare, bytes above the budget get dearer; where they are common, cheaper.
      price_ *= over_ ? 1.0002 : 0.9998;
      keep_if_best();
      continue;
    }
    for (const Place& place : added) remove(place);
    for (const Place& place : removed) add(place);
    over_ = over;
  }
}

}  // namespace coop
