// Making and dropping records, and walks over them.
#include "engine/lineage.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/chunk.h"

namespace coop {

Lineage::Lineage(Stamps& stamps, Cost& cost, std::function<void(Storage&)> forget, std::function<void(Op&)> drop)
    : stamps_(stamps), cost_(cost), forget_(std::move(forget)), drop_(std::move(drop)) {}

Lineage::~Lineage() { sweep(SIZE_MAX); }

Storage* Lineage::make_storage(Bytes bytes) {
  Storage* storage = storages_.make();
  storage->bytes = bytes;
  storage->id = next_id_++;
  return storage;
}

Op* Lineage::make_op(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
                     InPlace in_place) {
  void* memory = ::operator new(sizeof(Op) + inputs.size() * sizeof(Edge) + outputs.size() * sizeof(Storage*));
  Op* op = new (memory) Op;
  op->recipe = recipe;
  op->cost = cost;
  op->inputs_count = static_cast<std::uint32_t>(inputs.size());
  op->outputs_count = static_cast<std::uint32_t>(outputs.size());
  op->in_place = in_place;
  op->number = op->oldest = next_op_++;
  if (in_place != InPlace::no) op->target_bytes = outputs[0]->bytes;
  Edge* edge = op->inputs();
  for (Storage* input : inputs) {
    new (edge) Edge{input, op, nullptr, input->consumers};
    if (input->consumers) input->consumers->prev = edge;
    input->consumers = edge++;
    ++input->uses;
    if (!input->producer) continue;
    op->depth = std::max(op->depth, input->producer->depth + 1);
    if (!input->held) op->oldest = std::min(op->oldest, input->producer->oldest);
  }
  for (std::uint32_t i = 0; i < outputs.size(); ++i) {
    Storage* output = outputs[i];
    op->outputs()[i] = output;
    if (!output) continue;
    output->producer = op;
    output->cost = cost;
    output->output = i;
    cost_.recorded(*output);
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

void Lineage::replace(Storage& gone, Storage& same) {
  same.consumers = std::exchange(gone.consumers, nullptr);
  same.uses = std::exchange(gone.uses, 0);
  for (Edge* edge = same.consumers; edge; edge = edge->next) edge->storage = &same;
  cost_.split(gone, same);
}

Storage* Lineage::split(Storage& storage) {
  Storage* old = make_storage(storage.bytes);
  replace(storage, *old);
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
  if (storage.evicted()) cost_.restored(storage);  // so that costs around it no longer contain it
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
    ::operator delete(op);
    --ops_;
  }
  return dying_.empty();
}

std::size_t Lineage::held_dependents(Storage& storage, std::vector<Storage*>& found, std::size_t most) {
  std::size_t seen = 0;
  const std::uint64_t stamp = stamps_.next();
  stack_.assign(1, &storage);
  while (!stack_.empty()) {
    Storage* from = stack_.back();
    stack_.pop_back();
    for (Edge* edge = from->consumers; edge; edge = edge->next) {
      if (++seen > most) return seen;
      for (std::uint32_t i = 0; i < edge->op->outputs_count; ++i) {
        Storage* output = edge->op->outputs()[i];
        if (!output || output->stamp == stamp) continue;
        output->stamp = stamp;
        if (output->held || output->claims.pins || output->claims.locks) {
          found.push_back(output);
        } else {
          stack_.push_back(output);
        }
      }
    }
  }
  return seen;
}

std::size_t Lineage::trail(const Storage& storage, std::size_t most) {
  if (!storage.producer) return 0;
  const std::uint64_t stamp = stamps_.next();
  storage.producer->stamp = stamp;
  trail_.assign(1, storage.producer);
  std::size_t count = 0;
  while (!trail_.empty() && ++count <= most) {
    const Op* op = trail_.back();
    trail_.pop_back();
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      const Storage* input = op->inputs()[i].storage;
      if (input->held || !input->producer || input->producer->stamp == stamp) continue;
      input->producer->stamp = stamp;
      trail_.push_back(input->producer);
    }
  }
  return count;
}

void Lineage::missing(std::span<Storage* const> goals, std::vector<Op*>& order) {
  const std::uint64_t stamp = stamps_.next();
  std::vector<std::pair<Op*, std::uint32_t>> path;
  const auto descend = [&](const Storage& storage) {
    if (!storage.evicted() || !storage.producer || storage.producer->stamp == stamp) return;
    storage.producer->stamp = stamp;
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
      if (input->absent()) absent.emplace_back(need_of(*input), input->bytes);
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
      if (const Storage* output = edge->op->outputs()[i]; output && output->price.missing) ++missed;
    }
  }
  if (missed != storage.price.missed) fail("counts wrongly who misses it");
  if (storage.price.missing != (storage.evicted() && (storage.held || storage.price.missed)))
    fail("is missing or not, wrongly");
  if (storage.producer && storage.producer->outputs()[storage.output] != &storage) fail("is not its producer's output");
  if (storage.evicted() && !storage.producer && !storage.copy.lost) fail("rule 2: is gone and cannot be brought back");
  if (storage.absent() && storage.claims.locks) fail("rule 3: is locked and not resident");
  if (storage.unused()) {
    fail("should have been forgotten");
  }
}

}  // namespace coop
