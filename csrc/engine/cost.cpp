// The cost of evicting: exact walks over evicted storages, and union-find where a walk is too long.
#include "engine/cost.h"

#include <algorithm>
#include <utility>

namespace coop {

namespace {
constexpr Seconds kTooMany = -1;  // cached instead of a cost: an exact walk would visit too many ops
}

void Cost::split(Storage& storage, Storage& old) {
  old.price.missed = std::exchange(storage.price.missed, 0);
  storage.price.epoch = 0;
}

// Sets `missing` of an evicted storage, and updates what follows: each of its inputs is missed by
// one storage more or less, and an evicted input may become missing, or cease to be, itself.
void Cost::set_missing(Storage& storage, bool on) {
  storage.price.missing = on;
  flipped_.clear();
  stack_.assign(1, &storage);
  while (!stack_.empty()) {
    Op* op = stack_.back()->producer;
    stack_.pop_back();
    if (!op) continue;
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      Storage* input = op->inputs()[i].storage;
      input->price.missed += on ? 1 : -1;
      if (!input->price.missed) got_cheaper(*input);
      const bool needed = input->evicted() && (input->held || input->price.missed);
      if (needed == input->price.missing) continue;
      input->price.missing = needed;
      stack_.push_back(input);
      flipped_.push_back(input);
    }
  }
  if (!options_.needed_only) return;
  for (Storage* other : flipped_) invalidate_around(*other);
}

void Cost::unheld(Storage& storage) {
  if (!storage.price.missing || storage.price.missed) return;
  set_missing(storage, false);
  if (options_.needed_only) invalidate_around(storage);
}

void Cost::evicted(Storage& storage) {
  if (storage.held || storage.price.missed) set_missing(storage, true);
  if (options_.cost == CostModel::own) return;
  storage.price.component = components_.add(storage.producer ? storage.producer->cost : 0);
  if (Op* op = storage.producer) {
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      if (Storage* input = op->inputs()[i].storage; input->price.component)
        components_.join(storage.price.component, input->price.component);
    }
  }
  for (Edge* edge = storage.consumers; edge; edge = edge->next) {
    for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
      if (Storage* output = edge->op->outputs()[i]; output && output->price.component) {
        components_.join(storage.price.component, output->price.component);
      }
    }
  }
  invalidate_around(storage);
}

void Cost::restored(Storage& storage) {
  if (storage.price.missing) set_missing(storage, false);
  if (!storage.price.component) return;
  components_.remove(std::exchange(storage.price.component, 0), storage.producer ? storage.producer->cost : 0);
  invalidate_around(storage);
}

Seconds Cost::projected(Storage& storage) {
  if (options_.cost == CostModel::own) return storage.producer->cost;
  if (storage.price.epoch != epoch_) {
    if (options_.cost == CostModel::exact && around_exact(storage, storage.price.around)) {
      ++exact_costs_;
    } else {
      storage.price.around = kTooMany;
    }
    storage.price.epoch = epoch_;
    caching_ = true;
  }
  if (storage.price.around != kTooMany) return storage.producer->cost + storage.price.around;
  ++union_find_costs_;  // cheap, and not cached: no short walk finds everything that changes a component
  return storage.producer->cost + around_union_find(storage);
}

bool Cost::around_exact(Storage& storage, Seconds& sum) {
  const std::uint64_t stamp = stamps_.next();
  sum = 0;
  std::uint32_t visited = 0;
  stack_.clear();
  const auto up = [&](Op* op) {
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      if (Storage* input = op->inputs()[i].storage; input->evicted() && input->stamp != stamp) {
        input->stamp = stamp;
        stack_.push_back(input);
      }
    }
  };
  up(storage.producer);
  while (!stack_.empty()) {
    Op* op = stack_.back()->producer;
    stack_.pop_back();
    if (!op || op->stamp == stamp) continue;
    op->stamp = stamp;
    sum += op->cost;
    if (++visited > options_.exact_limit) return false;
    up(op);
  }
  const auto down = [&](Storage& from) {
    for (Edge* edge = from.consumers; edge; edge = edge->next) {
      for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
        Storage* output = edge->op->outputs()[i];
        if (!output || !output->evicted() || output->stamp == stamp) continue;
        output->stamp = stamp;
        if (output->price.missing || !options_.needed_only) stack_.push_back(output);
      }
    }
  };
  down(storage);
  while (!stack_.empty()) {
    Storage* next = stack_.back();
    stack_.pop_back();
    if (next->producer->stamp != stamp) {
      next->producer->stamp = stamp;
      sum += next->producer->cost;
    }
    if (++visited > options_.exact_limit) return false;
    down(*next);
  }
  return true;
}

Seconds Cost::around_union_find(Storage& storage) {
  Seconds sum = 0;
  roots_.clear();
  const auto add = [&](Storage* neighbour) {
    if (!neighbour || !neighbour->price.component) return;
    const std::uint32_t root = components_.find(neighbour->price.component);
    if (std::find(roots_.begin(), roots_.end(), root) != roots_.end()) return;
    roots_.push_back(root);
    sum += components_.cost(root);
  };
  for (std::uint32_t i = 0; i < storage.producer->inputs_count; ++i) add(storage.producer->inputs()[i].storage);
  for (Edge* edge = storage.consumers; edge; edge = edge->next) {
    for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) add(edge->op->outputs()[i]);
  }
  return sum;
}

// Invalidates the cached costs that contain this storage. Their storages are reached from it
// through evicted storages, up or down.
void Cost::invalidate_around(Storage& storage) {
  if (!caching_) return;
  const std::uint64_t stamp = stamps_.next();
  storage.price.epoch = 0;
  got_cheaper(storage);
  std::uint32_t visited = 0;
  for (const bool upwards : {true, false}) {
    stack_.assign(1, &storage);
    while (!stack_.empty()) {
      Storage* from = stack_.back();
      stack_.pop_back();
      if (++visited > options_.exact_limit) {
        ++epoch_;  // too many to visit: invalidate all
        caching_ = false;
        return;
      }
      const auto visit = [&](Storage* next) {
        if (!next || next->stamp == stamp) return;
        next->stamp = stamp;
        if (next->evicted()) {
          stack_.push_back(next);
        } else {
          next->price.epoch = 0;
          got_cheaper(*next);
        }
      };
      if (upwards) {
        if (Op* op = from->producer) {
          for (std::uint32_t i = 0; i < op->inputs_count; ++i) visit(op->inputs()[i].storage);
        }
      } else {
        for (Edge* edge = from->consumers; edge; edge = edge->next) {
          for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) visit(edge->op->outputs()[i]);
        }
      }
    }
  }
}

}  // namespace coop
