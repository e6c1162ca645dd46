// The order of a simple schedule, and the bytes that it needs.
#include "engine/schedule.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace coop {

Schedule::Schedule(std::span<Storage* const> goals, From from, Bytes alignment) : from_(from), alignment_(alignment) {
  find_order(goals, false);
  std::vector<std::pair<Op*, Bytes>> before;
  for (Op* op : order_) {
    before.emplace_back(op, op->need);
    find_need(*op);
  }
  find_order(goals, true);
  for (const Op* op : order_) {
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) ++uses_[op->inputs()[i].storage];
  }
  for (const Storage* goal : goals) ++uses_[goal];
  measure(goals);
  if (from_ == From::scratch) {  // what is only asked must not change what the next walk does
    for (const auto& [op, need] : before) op->need = need;
  }
}

// It has to be recomputed.
bool Schedule::absent(const Storage& storage) const {
  if (!storage.producer) return false;
  if (from_ == From::now) return storage.evicted();
  return !storage.foreign && !storage.claims.exposed && !storage.claims.pins;
}

// It has to be read from the tier.
bool Schedule::outside(const Storage& storage) const {
  if (from_ == From::now) return storage.absent() && storage.copy.page;
  return !storage.producer && !storage.foreign && !storage.claims.exposed && !storage.claims.pins &&
         storage.swappable();
}

// Depth first, without recursion, because lineages are long. `by_need`: the input with the largest
// need first.
void Schedule::find_order(std::span<Storage* const> goals, bool by_need) {
  struct Visit {
    Op* op;
    std::vector<Storage*> inputs;
    std::size_t at = 0;
  };
  order_.clear();
  std::unordered_set<const Op*> seen;
  std::vector<Visit> path;
  const auto sort = [&](std::vector<Storage*>& list) {
    if (!by_need) return;
    std::stable_sort(list.begin(), list.end(), [&](auto* a, auto* b) { return need(*a) > need(*b); });
  };
  const auto descend = [&](const Storage& storage) {
    if (!absent(storage) || !seen.insert(storage.producer).second) return;
    Visit visit{storage.producer, {}};
    for (std::uint32_t i = 0; i < visit.op->inputs_count; ++i) visit.inputs.push_back(visit.op->inputs()[i].storage);
    sort(visit.inputs);
    path.push_back(std::move(visit));
  };
  std::vector<Storage*> first(goals.begin(), goals.end());
  sort(first);
  for (const Storage* goal : first) {
    descend(*goal);
    while (!path.empty()) {
      if (path.back().at < path.back().inputs.size()) {
        const Storage& next = *path.back().inputs[path.back().at++];
        descend(next);
      } else {
        order_.push_back(path.back().op);
        path.pop_back();
      }
    }
  }
}

// Sethi and Ullman's number, in bytes.
void Schedule::find_need(Op& op) {
  std::vector<std::pair<Bytes, Bytes>> missing;
  for (std::uint32_t i = 0; i < op.inputs_count; ++i) {
    const Storage& input = *op.inputs()[i].storage;
    if (absent(input) || outside(input)) missing.emplace_back(need(input), round(input.bytes));
  }
  std::sort(missing.begin(), missing.end(), std::greater<>());
  Bytes kept = 0, most = 0;
  for (const auto& [bytes, own] : missing) {
    most = std::max(most, kept + bytes);
    kept += own;
  }
  op.need = std::max(most, kept + round(op.output_bytes));
}

void Schedule::measure(std::span<Storage* const> goals) {
  auto left = uses_;  // uses that are still to come
  std::unordered_set<const Storage*> made;
  Bytes kept = 0;
  const auto reach = [&](Bytes bytes, Bytes scratch) {
    most_ = std::max(most_, bytes);
    most_with_scratch_ = std::max(most_with_scratch_, bytes + scratch);
  };
  for (const Op* op : order_) {
    Bytes read = 0;
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      if (const Storage* input = op->inputs()[i].storage; outside(*input)) read += round(input->bytes);
    }
    // Each output has a block of its own, and each is rounded up.
    Bytes fresh = round(op->output_bytes) + alignment_ * op->outputs_count;
    if (op->in_place == InPlace::on_old) {
      const Storage* old = op->inputs()->storage;
      if (left[old] == 1 && made.contains(old) && !old->held) fresh -= round(op->target_bytes);  // taken over
    }
    reach(kept + read + fresh, op->scratch);
    for (std::uint32_t i = 0; i < op->outputs_count; ++i) {
      const Storage* output = op->outputs()[i];
      if (output && left.contains(output) && absent(*output) && made.insert(output).second)
        kept += round(output->bytes);
    }
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      const Storage* input = op->inputs()[i].storage;
      if (--left[input] == 0 && made.contains(input)) kept -= round(input->bytes);
    }
  }
  for (const Storage* goal : goals) {
    if (outside(*goal)) kept += round(goal->bytes);
  }
  reach(kept, 0);
}

}  // namespace coop
