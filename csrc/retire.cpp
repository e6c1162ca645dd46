// The end: everything that somebody holds leaves the arena with its bytes.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine.h"

namespace coop {

void Engine::evacuate(Storage& storage, std::vector<Storage*>& outside) {
  still(storage);
  if (!driver_.evacuate(storage)) return;
  commit_resident(storage);
  set_free(storage);
  note(EventKind::free, storage);
  release_block(storage);
  storage.foreign = true;
  outside.push_back(&storage);
}

// It keeps its lineage: what was made from it may still come back.
void Engine::abandon(Storage& storage) {
  held_evicted_.erase(&storage);
  driver_.abandon(storage);
  storage.held = false;
  storage.handle = nullptr;
  storage.in_hand = true;
  lineage_.unheld(storage);
}

std::size_t Engine::retire(Bytes spare) {
  Lock lock(mutex_);
  std::vector<Storage*> outside, pinned;
  if (follower_) follower_->let_go();
  finish_all(true);
  retired_ = true;
  orphans_.clear();
  trails_.clear();
  for (Block* block = arena_.first(); block; block = block->next) {
    if (block->storage && block->storage->pins) pinned.push_back(block->storage);
  }
  for (Storage* storage : pinned) {
    storage->pins = storage->pinned = 0;
    lineage_.reconsider(*storage);
  }
  const auto evacuate_all = [&] {
    std::vector<Storage*> leaving;
    for (Block* block = arena_.first(); block; block = block->next) {
      Storage* storage = block->storage;
      if (!storage || !storage->held || storage->exposed) continue;
      const bool read_now = storage->locks > 0;  // by an op of another thread
      if (!read_now) leaving.push_back(storage);
    }
    for (Storage* storage : leaving) evacuate(*storage, outside);
  };
  evacuate_all();
  std::size_t lost = 0;
  while (!held_evicted_.empty()) {
    // The shallowest first: what is made from it finds it outside already, and needs no room for it.
    Storage* storage = *std::min_element(held_evicted_.begin(), held_evicted_.end(), [](auto* a, auto* b) {
      const auto depth = [](const Storage* one) { return one->producer ? one->producer->depth : 0; };
      return std::pair(depth(a), a->id) < std::pair(depth(b), b->id);
    });
    try {
      bring_back(*storage, lock);
    } catch (const std::logic_error& error) {
      broken(error.what());  // told when the scope has been closed
      if (storage->resident()) continue;
      storage->lost = true;
      abandon(*storage);
      outside.push_back(storage);
      ++lost;
    } catch (const Lost&) {
      storage->lost = true;
      if (storage->held) abandon(*storage);  // else it is the lost one itself
      outside.push_back(storage);
      ++lost;
    } catch (...) {
      if (spare) {
        arena_.extend(std::exchange(spare, 0));
        continue;
      }
      abandon(*storage);
      outside.push_back(storage);
      ++lost;
    }
    evacuate_all();
  }
  for (Storage* storage : outside) {
    storage->held = storage->in_hand = false;
    lineage_.reconsider(*storage);
  }
  lineage_.sweep(SIZE_MAX);
  return lost;
}

}  // namespace coop
