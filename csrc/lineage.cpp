// Lineage: making and dropping records, projected costs, walks.
#include "lineage.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "chunk.h"

namespace coop {

namespace {
constexpr Seconds kTooMany = -1;  // cached instead of a cost: more ops around than an exact walk may visit
}

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

Lineage::Lineage(const Options& options, std::function<void(Storage&)> forget, std::function<void(Op&)> drop)
    : options_(options), forget_(std::move(forget)), drop_(std::move(drop)) {}

Lineage::~Lineage() { sweep(SIZE_MAX); }

Storage* Lineage::make_storage(Bytes bytes) {
  Storage* storage = storages_.make();
  storage->bytes = bytes;
  storage->id = next_id_++;
  return storage;
}

Op* Lineage::make_op(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
                     InPlace in_place) {
  void* memory = std::malloc(sizeof(Op) + inputs.size() * sizeof(Edge) + outputs.size() * sizeof(Storage*));
  if (!memory) throw std::bad_alloc();
  Op* op = new (memory) Op;
  op->recipe = recipe;
  op->cost = cost;
  op->inputs_count = static_cast<std::uint32_t>(inputs.size());
  op->outputs_count = static_cast<std::uint32_t>(outputs.size());
  op->in_place = in_place;
  if (in_place != InPlace::no) op->target_bytes = outputs[0]->bytes;
  Edge* edge = op->inputs();
  for (Storage* input : inputs) {
    new (edge) Edge{input, op, nullptr, input->consumers};
    if (input->consumers) input->consumers->prev = edge;
    input->consumers = edge++;
    ++input->uses;
    if (input->producer) op->depth = std::max(op->depth, input->producer->depth + 1);
  }
  for (std::uint32_t i = 0; i < outputs.size(); ++i) {
    Storage* output = outputs[i];
    op->outputs()[i] = output;
    if (!output) continue;
    output->producer = op;
    output->cost = cost;
    output->output = i;
    output->epoch = 0;
    op->output_bytes += output->bytes;
    ++op->live_outputs;
  }
  ++ops_;
  return op;
}

void Lineage::unlink(Edge& edge) {
  (edge.prev ? edge.prev->next : edge.storage->consumers) = edge.next;
  if (edge.next) edge.next->prev = edge.prev;
  --edge.storage->uses;
}

Storage* Lineage::split(Storage& storage) {
  Storage* old = make_storage(storage.bytes);
  old->consumers = std::exchange(storage.consumers, nullptr);
  old->uses = std::exchange(storage.uses, 0);
  old->missed = std::exchange(storage.missed, 0);
  for (Edge* edge = old->consumers; edge; edge = edge->next) edge->storage = old;
  old->producer = std::exchange(storage.producer, nullptr);
  old->cost = storage.cost;
  old->output = storage.output;
  old->versions = storage.versions++;
  old->last_access = storage.last_access;
  old->unset = storage.unset;
  old->ragged = storage.ragged;
  old->digest = std::exchange(storage.digest, 0);
  old->engine = storage.engine;
  if (old->producer) old->producer->outputs()[old->output] = old;
  storage.epoch = 0;
  return old;
}

void Lineage::commit(Storage& storage) {
  Op* op = std::exchange(storage.producer, nullptr);
  if (!op) return;
  op->outputs()[storage.output] = nullptr;
  if (--op->live_outputs == 0) dying_.push_back(op);
}

void Lineage::reconsider(Storage& storage) {
  if (!storage.unused()) return;
  if (storage.gone()) restored(storage);  // costs around it no longer contain it
  forget_(storage);
  commit(storage);
  storages_.release(&storage);
}

bool Lineage::sweep(std::size_t portion) {
  for (; portion && !dying_.empty(); --portion) {
    Op* op = dying_.front();
    dying_.pop_front();
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      unlink(op->inputs()[i]);
      reconsider(*op->inputs()[i].storage);
    }
    drop_(*op);
    op->~Op();
    std::free(op);
    --ops_;
  }
  return dying_.empty();
}

// What an evicted storage was made from is missed by it, if somebody needs it: it is held, or missed itself.
void Lineage::set_missing(Storage& storage, bool on) {
  storage.missing = on;
  flipped_.clear();
  stack_.assign(1, &storage);
  while (!stack_.empty()) {
    Op* op = stack_.back()->producer;
    stack_.pop_back();
    if (!op) continue;
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      Storage* input = op->inputs()[i].storage;
      input->missed += on ? 1 : -1;
      if (!input->missed) got_cheaper(*input);
      const bool needed = input->gone() && (input->held || input->missed);
      if (needed == input->missing) continue;
      input->missing = needed;
      stack_.push_back(input);
      flipped_.push_back(input);
    }
  }
  if (!options_.needed_only) return;
  for (Storage* other : flipped_) invalidate_around(*other);
}

void Lineage::unheld(Storage& storage) {
  if (!storage.missing || storage.missed) return;
  set_missing(storage, false);
  if (options_.needed_only) invalidate_around(storage);
}

void Lineage::evicted(Storage& storage) {
  if (storage.held || storage.missed) set_missing(storage, true);
  if (options_.cost == CostModel::own) return;
  storage.component = components_.add(storage.producer ? storage.producer->cost : 0);
  if (Op* op = storage.producer) {
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      if (Storage* input = op->inputs()[i].storage; input->component)
        components_.join(storage.component, input->component);
    }
  }
  for (Edge* edge = storage.consumers; edge; edge = edge->next) {
    for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
      if (Storage* output = edge->op->outputs()[i]; output && output->component) {
        components_.join(storage.component, output->component);
      }
    }
  }
  invalidate_around(storage);
}

void Lineage::restored(Storage& storage) {
  if (storage.missing) set_missing(storage, false);
  if (!storage.component) return;
  components_.remove(std::exchange(storage.component, 0), storage.producer ? storage.producer->cost : 0);
  invalidate_around(storage);
}

Seconds Lineage::projected_cost(Storage& storage) {
  if (options_.cost == CostModel::own) return storage.producer->cost;
  if (storage.epoch != epoch_) {
    if (options_.cost == CostModel::exact && around_exact(storage, storage.around)) {
      ++exact_costs_;
    } else {
      storage.around = kTooMany;
    }
    storage.epoch = epoch_;
    caching_ = true;
  }
  if (storage.around != kTooMany) return storage.producer->cost + storage.around;
  ++union_find_costs_;  // cheap, and not cached: a component changes at places that no short walk leads to
  return storage.producer->cost + around_union_find(storage);
}

bool Lineage::around_exact(Storage& storage, Seconds& sum) {
  ++stamp_;
  sum = 0;
  std::uint32_t visited = 0;
  stack_.clear();
  const auto up = [&](Op* op) {
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      if (Storage* input = op->inputs()[i].storage; input->gone() && input->stamp != stamp_) {
        input->stamp = stamp_;
        stack_.push_back(input);
      }
    }
  };
  up(storage.producer);
  while (!stack_.empty()) {
    Op* op = stack_.back()->producer;
    stack_.pop_back();
    if (!op || op->stamp == stamp_) continue;
    op->stamp = stamp_;
    sum += op->cost;
    if (++visited > options_.exact_limit) return false;
    up(op);
  }
  const auto down = [&](Storage& from) {
    for (Edge* edge = from.consumers; edge; edge = edge->next) {
      for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
        Storage* output = edge->op->outputs()[i];
        if (!output || !output->gone() || output->stamp == stamp_) continue;
        output->stamp = stamp_;
        if (output->missing || !options_.needed_only) stack_.push_back(output);
      }
    }
  };
  down(storage);
  while (!stack_.empty()) {
    Storage* next = stack_.back();
    stack_.pop_back();
    if (next->producer->stamp != stamp_) {
      next->producer->stamp = stamp_;
      sum += next->producer->cost;
    }
    if (++visited > options_.exact_limit) return false;
    down(*next);
  }
  return true;
}

Seconds Lineage::around_union_find(Storage& storage) {
  Seconds sum = 0;
  roots_.clear();
  const auto add = [&](Storage* neighbour) {
    if (!neighbour || !neighbour->component) return;
    const std::uint32_t root = components_.find(neighbour->component);
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

// The storages whose cached cost contains this one are reached from it through evicted storages, up or down.
void Lineage::invalidate_around(Storage& storage) {
  if (!caching_) return;
  ++stamp_;
  storage.epoch = 0;
  got_cheaper(storage);
  std::uint32_t visited = 0;
  for (const bool upwards : {true, false}) {
    stack_.assign(1, &storage);
    while (!stack_.empty()) {
      Storage* from = stack_.back();
      stack_.pop_back();
      if (++visited > options_.exact_limit) {
        ++epoch_;  // too many to name: all caches are void
        caching_ = false;
        return;
      }
      const auto visit = [&](Storage* next) {
        if (!next || next->stamp == stamp_) return;
        next->stamp = stamp_;
        if (next->gone()) {
          stack_.push_back(next);
        } else {
          next->epoch = 0;
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

std::size_t Lineage::held_dependents(Storage& storage, std::vector<Storage*>& found) {
  std::size_t seen = 0;
  ++stamp_;
  stack_.assign(1, &storage);
  while (!stack_.empty()) {
    Storage* from = stack_.back();
    stack_.pop_back();
    for (Edge* edge = from->consumers; edge; edge = edge->next, ++seen) {
      for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
        Storage* output = edge->op->outputs()[i];
        if (!output || output->stamp == stamp_) continue;
        output->stamp = stamp_;
        if (output->held || output->pins || output->locks) {
          found.push_back(output);
        } else {
          stack_.push_back(output);
        }
      }
    }
  }
  return seen;
}

void Lineage::missing(std::span<Storage* const> goals, std::vector<Op*>& order) {
  ++stamp_;
  std::vector<std::pair<Op*, std::uint32_t>> path;
  const auto descend = [&](const Storage& storage) {
    if (!storage.gone() || !storage.producer || storage.producer->stamp == stamp_) return;
    storage.producer->stamp = stamp_;
    path.emplace_back(storage.producer, 0);
  };
  for (const Storage* goal : goals) {
    descend(*goal);
    while (!path.empty()) {
      auto& [op, at] = path.back();
      if (at < op->inputs_count) {
        descend(*op->inputs()[at++].storage);
      } else {
        order.push_back(op);
        path.pop_back();
      }
    }
  }
}

void Lineage::find_needs(std::span<Op* const> order) {
  std::vector<std::pair<Bytes, Bytes>> absent;  // need, own bytes
  for (Op* op : order) {
    absent.clear();
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      const Storage* input = op->inputs()[i].storage;
      if (input->evicted()) absent.emplace_back(need_of(*input), input->bytes);
    }
    std::sort(absent.begin(), absent.end(), std::greater<>());
    Bytes kept = 0, most = 0;
    for (const auto& [need, bytes] : absent) {
      most = std::max(most, kept + need);
      kept += bytes;
    }
    op->need = std::max(most, kept + op->output_bytes);
  }
}

void Lineage::check(const Storage& storage) const {
  const auto fail = [&](const char* what) {
    throw std::logic_error("lineage: storage " + std::to_string(storage.id) + " of " + std::to_string(storage.bytes) +
                           " B: " + what);
  };
  std::uint32_t uses = 0;
  for (const Edge* edge = storage.consumers; edge; edge = edge->next) {
    if (edge->storage != &storage) fail("is not what its consumer reads");
    ++uses;
  }
  if (uses != storage.uses) fail("counts its consumers wrongly");
  std::uint32_t missed = 0;
  for (const Edge* edge = storage.consumers; edge; edge = edge->next) {
    for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
      if (const Storage* output = edge->op->outputs()[i]; output && output->missing) ++missed;
    }
  }
  if (missed != storage.missed) fail("counts wrongly who misses it");
  if (storage.missing != (storage.gone() && (storage.held || storage.missed))) fail("is missing or not, wrongly");
  if (storage.producer && storage.producer->outputs()[storage.output] != &storage) fail("is not its producer's output");
  if (storage.gone() && !storage.producer && !storage.lost) fail("rule 2: is gone and cannot be brought back");
  if (storage.evicted() && storage.locks) fail("rule 3: is locked and not resident");
  if (storage.unused()) {
    fail("should have been forgotten");
  }
}

}  // namespace coop
