// Rematerialising: which ops, in which order, under which pins.
//
// First the whole missing subgraph is found, everything resident that it needs is pinned, and each op releases its inputs when
// it has run (the paper's way: no input is evicted and recomputed twice). If that does not fit, a leaner walk holds on
// to nothing but the operands of the op that runs, at the price of repeated work.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine.h"

namespace coop {

void Engine::bring_back(Storage& storage, Lock& lock) {
  std::vector<Op*> order;
  lineage_.missing(storage, order);
  for (Op* op : order) {
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) ++op->inputs()[i].storage->pins;
  }
  std::size_t done = 0;
  const auto release = [&](Op* op) {
    // Unpinning the last reader of a storage may drop it, and with it the op that made it, but never this op: its
    // output is pinned, held or read by an op that is still to run.
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
      Storage* input = op->inputs()[i].storage;
      --input->pins;
      if (!options_.keep_dead && !input->held && input->uses && input->evictable()) {
        release_block(*input);
        lineage_.evicted(*input);
      }
    }
  };
  try {
    while (done < order.size()) {
      replay(*order[done], lock);
      release(order[done++]);
    }
  } catch (const Shortage&) {
    while (done < order.size()) release(order[done++]);
    bring_back_leanly(storage, lock);
  } catch (...) {
    while (done < order.size()) release(order[done++]);
    throw;
  }
}

void Engine::bring_back_leanly(Storage& storage, Lock& lock) {
  std::vector<Storage*> goals{&storage};
  bool compacted = false;
  std::size_t budget = 0;  // of replays, so that two storages that push each other out cannot go on for ever
  {
    std::vector<Op*> order;
    lineage_.missing(storage, order);
    budget = std::min<std::size_t>(64 + order.size() * order.size(), 100000);
  }
  while (!goals.empty()) {
    Storage* goal = goals.back();
    if (goal->resident()) {
      goals.pop_back();
      continue;
    }
    Op* op = goal->producer;
    Storage* absent = nullptr;
    for (std::uint32_t i = 0; i < op->inputs_count && !absent; ++i) {
      if (op->inputs()[i].storage->evicted()) absent = op->inputs()[i].storage;
    }
    if (absent) {
      goals.push_back(absent);
      continue;
    }
    if (budget-- == 0) throw thrashing(arena_.round(goal->bytes));
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) ++op->inputs()[i].storage->pins;
    const auto release = [&] {
      for (std::uint32_t i = 0; i < op->inputs_count; ++i) --op->inputs()[i].storage->pins;
    };
    try {
      replay(*op, lock);
      compacted = false;
    } catch (const Shortage&) {
      if (compacted || !options_.rescue) {
        release();
        throw;
      }
      compacted = true;
      compact_unlocked();  // and once more
    } catch (...) {
      release();
      throw;
    }
    release();
  }
}

// Inputs are resident, and pinned once by the caller.
void Engine::replay(Op& op, Lock& lock) {
  for (std::uint32_t i = 0; i < op.inputs_count; ++i) {
    if (op.inputs()[i].storage->evicted()) throw std::logic_error("rule 3: an operand left before its op ran");
  }
  const Side before = side_;
  side_ = side_of(op.cost / static_cast<double>(std::max<Bytes>(op.output_bytes, 1)));
  std::vector<Block*> produced(op.outputs_count, nullptr);
  Block* target = nullptr;
  const std::uint32_t from = op.in_place == InPlace::on_old ? 1 : 0;
  for (std::uint32_t i = from; i < op.inputs_count; ++i) lock_operand(*op.inputs()[i].storage);
  const auto unlock_operands = [&] {
    side_ = before;
    for (std::uint32_t i = from; i < op.inputs_count; ++i) unlock_operand(*op.inputs()[i].storage);
  };
  Seconds cost = 0;
  try {
    if (op.in_place != InPlace::no) produced[0] = target = target_of(op);
    lock.unlock();
    cost = driver_.replay(op, target, produced.data());
    lock.lock();
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (target) {
      raw_ -= target->bytes;
      arena_.release(target);
    }
    unlock_operands();
    throw;
  }
  unlock_operands();
  now_ += cost;
  counts_.recompute_seconds += cost;
  ++counts_.replays;
  for (std::uint32_t i = 0; i < op.inputs_count; ++i) op.inputs()[i].storage->last_access = now_;
  for (std::uint32_t i = 0; i < op.outputs_count; ++i) {
    Block* block = produced[i];
    if (!block) continue;
    raw_ -= block->bytes;
    Storage* output = op.outputs()[i];
    if (!output || output->resident()) {  // nobody's any more, or still here
      arena_.release(block);
      continue;
    }
    place(*output, block);
  }
  for (std::uint32_t i = 0; i < op.outputs_count; ++i) {
    if (Storage* output = op.outputs()[i]; output && output->evicted()) {
      throw std::logic_error("rule 4: a replay did not bring its output back");
    }
  }
  check_at_event();
}

// The bytes an in-place op works on: the old version's own if nobody else waits for it, else a copy of them. As a raw
// block either way.
Block* Engine::target_of(Op& op) {
  if (op.in_place == InPlace::from_scratch) {
    Block* block = arena_.allocate(op.target_bytes, side_);
    if (!block) block = make_room(op.target_bytes, side_);
    raw_ += block->bytes;
    note_use();
    return block;
  }
  Storage& old = *op.inputs()[0].storage;
  if (old.pins == 1 && old.locks == 0 && old.producer && old.block && !old.held) {
    Block* block = old.block;
    cached_ -= block->bytes;
    old.block = nullptr;
    arena_.unsettle(block);
    raw_ += block->bytes;
    lineage_.evicted(old);
    note_use();
    return block;
  }
  ++old.locks;
  Block* block = arena_.allocate(old.bytes, side_);
  try {
    if (!block) block = make_room(old.bytes, side_);
  } catch (...) {
    --old.locks;
    throw;
  }
  --old.locks;
  raw_ += block->bytes;
  note_use();
  driver_.copy(block->offset, old.block->offset, old.bytes);
  return block;
}

void Engine::place(Storage& storage, Block* block) {
  arena_.settle(block, &storage);
  storage.block = block;
  storage.last_access = now_;
  lineage_.restored(storage);
  ++counts_.rematerialisations;
  if (options_.checks >= 2 && storage.digest && !storage.unset) {
    if (driver_.digest(block->offset, storage.bytes) != storage.digest) {
      throw std::logic_error("rule 4: a storage came back with other bytes");
    }
  }
  note(EventKind::restore, &storage, block->offset, storage.bytes);
  if (storage.held) {
    held_evicted_.erase(&storage);
    driver_.attach(storage);
  } else {
    cached_ += block->bytes;
  }
}

}  // namespace coop
