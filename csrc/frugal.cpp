// The last ways: bringing storages back by a simple schedule, and what it takes; an op beyond the budget, to see what that
// takes.
//
// Before each op of the schedule everything leaves that it will not read any more, and the rest is packed. So a budget
// that holds what cannot leave and the schedule's bytes is enough, whatever happened before: this is what a tip says.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine.h"

namespace coop {

namespace {

// Pins that end with it.
class Pins {
 public:
  Pins() = default;
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;
  ~Pins() { clear(); }

  void add(Storage& storage) {
    ++storage.pins;
    storages_.push_back(&storage);
  }
  void remove(Storage& storage) {
    const auto found = std::find(storages_.begin(), storages_.end(), &storage);
    if (found == storages_.end()) return;
    --storage.pins;
    storages_.erase(found);
  }
  void clear() {
    for (Storage* storage : storages_) --storage->pins;
    storages_.clear();
  }

 private:
  std::vector<Storage*> storages_;
};

}  // namespace

// All that could leave has left.
bool Engine::fits(std::span<Storage* const> goals) const {
  return Schedule(goals, Schedule::From::now, options_.alignment).most() <= arena_.free_bytes();
}

// Nothing is wanted but the goals.
void Engine::bring_back_frugally(std::span<Storage* const> goals, Lock& lock) {
  // True: it is here, pinned. False: its bytes outside are no longer what they were, and it has to be made.
  const auto read = [&](Storage& storage, Pins& pins) {
    if (storage.evicted()) {
      if (!storage.page && !storage.producer) lose(storage);
      if (!storage.page) return false;
      compact_unlocked(true);
      miss(storage);
    }
    if (storage.resident()) pins.add(storage);  // also if it happens to be here: reading the next would send it away
    return storage.resident();
  };
  for (bool again = true; std::exchange(again, false);) {
    const Schedule schedule(goals, Schedule::From::now, options_.alignment);
    Pins kept;  // until their last op has run; goals, to the end
    for (Storage* goal : goals) {
      if (goal->resident()) kept.add(*goal);
    }
    std::unordered_map<const Storage*, std::uint32_t> done;
    for (Op* op : schedule.order()) {
      Pins inputs;
      const std::span<Edge> edges(op->inputs(), op->inputs_count);
      for (const Edge& edge : edges) {
        if (edge.storage->resident()) inputs.add(*edge.storage);
      }
      for (const Edge& edge : edges) {
        if (edge.storage->evicted() && !read(*edge.storage, inputs)) again = true;
      }
      if (again) break;
      for (const Edge& edge : edges) {
        if (++done[edge.storage] == schedule.uses(*edge.storage)) kept.remove(*edge.storage);
      }
      compact_unlocked(true);
      replay(*op, lock);
      for (std::uint32_t i = 0; i < op->outputs_count; ++i) {
        if (Storage* output = op->outputs()[i]; output && schedule.uses(*output) > done[output]) kept.add(*output);
      }
    }
    for (Storage* goal : goals) {
      if (!again && !read(*goal, kept)) again = true;
    }
  }
}

Bytes Engine::enough_for(std::span<Storage* const> inputs) const {
  const Lock lock(mutex_);
  return enough_unlocked(inputs);
}

Bytes Engine::enough_unlocked(std::span<Storage* const> goals) const {
  Bytes stuck = 0;
  for (const Block* block = arena_.first(); block; block = block->next) {
    const Storage* storage = block->storage;
    if (block->state == Block::State::raw) stuck += block->bytes;
    if (!storage) continue;
    const bool elsewhere = storage->locks && std::find(goals.begin(), goals.end(), storage) == goals.end();
    const bool leaves = storage->producer || storage->swappable();
    if (storage->exposed || storage->pins || elsewhere || !leaves) stuck += block->bytes;
  }
  return stuck - carried_ + Schedule(goals, Schedule::From::scratch, options_.alignment).most_with_scratch();
}

void Engine::overdraw(Bytes bytes) {
  const Lock lock(mutex_);
  if (overdraft_) throw std::logic_error("rule 1: a second overdraft");
  overdraft_ = bytes / options_.alignment * options_.alignment;
  arena_.extend(overdraft_);
  top_ = 0;
}

bool Engine::end_overdraft() {
  const Lock lock(mutex_);
  if (!overdraft_) return true;
  compact_unlocked(true);
  if (!arena_.shrink(overdraft_)) return false;
  overdraft_ = 0;
  return true;
}

}  // namespace coop
