// The end of a scope.
#include <stdexcept>
#include <utility>

#include "engine/engine.h"

namespace coop {

// Moves every storage that is held and resident out of the arena, with its bytes.
void Engine::evacuate_all(std::vector<Storage*>& outside) {
  transfers_.finish_all();
  std::vector<Storage*> leaving;
  for (Block* block = arena_.first(); block; block = block->next) {
    Storage* storage = block->storage;
    // A locked storage is in use by an op of another thread.
    if (storage && storage->held && storage->movable()) leaving.push_back(storage);
  }
  for (Storage* storage : leaving) {
    if (!driver_.evacuate(*storage)) continue;
    commits_.commit(*storage);
    journal_.note(EventKind::free, *storage);
    blocks_.free(*storage);
    storage->foreign = true;
    outside.push_back(storage);
  }
}

std::size_t Engine::retire(Bytes extra) {
  const Lock lock(gate_);
  std::vector<Storage*> outside, pinned;
  if (follower_) follower_->want_nothing();
  transfers_.finish_all();
  retired_ = true;
  ahead_.stop();
  commits_.clear();
  for (Block* block = arena_.first(); block; block = block->next) {
    if (block->storage && block->storage->claims.pins) pinned.push_back(block->storage);
  }
  for (Storage* storage : pinned) {
    storage->claims.pins = storage->claims.program_pins = 0;
    lineage_.reconsider(*storage);
  }
  evacuate_all(outside);
  std::size_t lost = 0;
  const auto give_up = [&](Storage& storage) {
    if (storage.held) walk_.abandon(storage);  // else it was abandoned when it was found lost
    outside.push_back(&storage);
    ++lost;
  };
  while (!blocks_.held_absent().empty()) {
    // The shallowest first: its consumers then find it outside the arena, and need no room for it.
    const auto& absent = blocks_.held_absent();
    Storage& storage = **std::min_element(absent.begin(), absent.end(), [](auto* a, auto* b) {
      const auto depth = [](const Storage* one) { return one->producer ? one->producer->depth : 0; };
      return std::pair(depth(a), a->id) < std::pair(depth(b), b->id);
    });
    try {
      walk_.bring_back(storage);
    } catch (const std::logic_error& error) {
      checks_.broken(error.what());  // thrown when the scope has been closed
      if (storage.resident()) continue;
      transfers_.set_lost(storage);
      give_up(storage);
    } catch (const Lost&) {
      transfers_.set_lost(storage);
      give_up(storage);
    } catch (...) {
      if (extra) {
        arena_.extend(std::exchange(extra, 0));
        continue;
      }
      give_up(storage);
    }
    evacuate_all(outside);
  }
  for (Storage* storage : outside) {
    storage->held = storage->claims.driver_refers = false;
    lineage_.reconsider(*storage);
  }
  lineage_.sweep(SIZE_MAX);
  return lost;
}

}  // namespace coop
