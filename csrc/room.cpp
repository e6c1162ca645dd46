// Making room: evict, slide, compact, and saying honestly why it cannot be done.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "engine.h"

namespace coop {

namespace {

constexpr double kForgetting = 0.998;  // of the price, with each search
constexpr double kJump = 2;            // that it may make

class Watch {
 public:
  Seconds seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

// The slow path of allocate: no hole is large enough.
Block* Engine::make_room(Bytes bytes, Side side) {
  const Watch all;
  const Bytes needed = arena_.round(bytes);
  Scene scene = this->scene(side);
  Block* block = nullptr;
  ++counts_.searches;
  while (!block) {
    const Watch search;
    const Run run = needed <= arena_.capacity() ? find_room(*policy_, scene, needed) : Run();
    const Seconds seconds = search.seconds();
    counts_.search_seconds += seconds;
    note(EventKind::search, nullptr, 0, needed, seconds);
    if (!run.first && !transfers_.empty()) {  // what is under way may be in the way
      finish_all(true);
      scene.now = now_;
      block = arena_.allocate(bytes, side);
      continue;
    }
    if (!run.first && std::exchange(room_outside_, false)) {
      refused_ = false;
      for (Block* at = arena_.first(); at; at = at->next) {
        if (at->storage) price_swap(*at->storage);
      }
      continue;
    }
    if (!run.first) {
      note(EventKind::shortage, nullptr, 0, needed);
      room_seconds_ += all.seconds();
      throw shortage(needed);
    }
    Block* hole = clear(run, scene);
    if (hole && hole->bytes >= needed) block = arena_.take(hole, needed, side);
  }
  if (scene.wanted_too) scene.found.price = terms_.price;  // what is wanted has none
  terms_ = scene.found;
  price_ *= kForgetting;
  if (terms_.price != Terms().price && !scene.wanted_too) {
    price_ = std::max(price_, price_ > 0 ? std::min(terms_.price, kJump * price_) : terms_.price);
  }
  fragmentation_sum_ += static_cast<double>(arena_.free_bytes()) / static_cast<double>(arena_.capacity());
  ++fragmentation_count_;
  room_seconds_ += all.seconds();
  return block;
}

// Empties a run of blocks: what stays slides to the low edge. Returns the hole; null: something could not leave after all.
Block* Engine::clear(Run run, Scene& scene) {
  std::vector<Storage*> leaving, staying;
  for (Block* block = run.first;; block = block->next) {
    if (Storage* storage = block->storage) (stays(scene, *storage) ? staying : leaving).push_back(storage);
    if (block == run.last) break;
  }
  if (!clean(leaving)) return nullptr;
  Block* hole = run.first;
  for (Storage* storage : leaving) hole = evict(*storage);
  for (Storage* storage : staying) {
    if (Block* below = storage->block->prev; below && below->state == Block::State::free) hole = slide(*storage);
  }
  check_at_event();
  return hole;
}

Block* Engine::evict(Storage& storage) {
  if (!storage.producer && !storage.page) throw std::logic_error("rule 2: a source would leave without its bytes");
  if (options_.checks >= 2 && storage.defined()) storage.digest = driver_.digest(storage.block->offset, storage.bytes);
  if (storage.held) {
    driver_.detach(storage);
    held_evicted_.insert(&storage);
    ++counts_.evictions;
    counts_.evicted_bytes += storage.bytes;
  }
  note(EventKind::evict, storage);
  storage.fetched = false;
  learn_use(storage, storage.page);
  news_ += storage.bytes;
  Block* hole = release_block(storage);
  left(storage);
  return hole;
}

// A storage that nobody holds, but ops read: without keep_dead, and while nothing else is evicted.
void Engine::evict_eagerly(Storage& storage) {
  if (!storage.uses || !storage.producer || !storage.evictable()) return;
  note(EventKind::evict, storage);
  release_block(storage);
  left(storage);
}

Block* Engine::slide(Storage& storage) {
  still(storage);
  const Bytes from = storage.block->offset;
  Block* hole = arena_.slide_down(storage.block);
  moved(storage, from);
  return hole;
}

void Engine::moved(Storage& storage, Bytes from) {
  counts_.move_seconds += driver_.copy(storage.block->offset, from, storage.bytes);
  if (const Bytes end = storage.block->offset + storage.bytes; storage.block->offset < from) {
    spoil(std::max(end, from), from + storage.bytes - std::max(end, from));
  }
  if (storage.held) driver_.attach(storage);
  ++counts_.moves;
  counts_.moved_bytes += storage.bytes;
  note(EventKind::move, storage, static_cast<double>(from));
}

void Engine::pack() {
  const Lock lock(mutex_);
  pack_unlocked();
}

void Engine::pack_unlocked() {
  finish_all(true);
  for (Block* block = arena_.first(); block; block = block->next) {
    if (!block->storage || block->storage->locks) continue;
    if (Block* below = block->prev; below && below->state == Block::State::free) slide(*block->storage);
  }
  check_at_event();
}

void Engine::compact() {
  const Lock lock(mutex_);
  compact_unlocked(true);
  top_ = 0;
}

void Engine::compact_unlocked(bool wanted_too) {
  finish_all(true);
  std::vector<Storage*> leaving;
  for (Block* block = arena_.first(); block; block = block->next) {
    Storage* storage = block->storage;
    if (storage && storage->evictable(wanted_too)) leaving.push_back(storage);
  }
  clean(leaving);
  for (Storage* storage : leaving) {
    if (storage->producer || storage->page) evict(*storage);
  }
  pack_unlocked();
}

void Engine::shake() {
  if (!retired_) compact_unlocked(true);
}

Shortage Engine::shortage(Bytes needed) const {
  Shortage shortage;
  shortage.needed = needed;
  shortage.budget = options_.budget;
  shortage.kept = sources_;
  shortage.working = std::max(working_, needed);
  shortage.swaps = options_.swap;
  shortage.largest = largest_run(arena_, options_.rescue || (options_.move && options_.windows()));
  Bytes fixed = 0;
  for (const Block* block = arena_.first(); block; block = block->next) {
    const Storage* storage = block->storage;
    if (block->state == Block::State::free || (storage && storage->evictable())) continue;
    fixed += block->bytes;
    (!storage            ? shortage.scratch
     : storage->exposed  ? shortage.exposed
     : storage->locks    ? shortage.locked
     : storage->source() ? shortage.sources
                         : shortage.pinned) += block->bytes;
  }
  shortage.enough =
      std::max(fixed + needed, fixed + needed <= arena_.capacity() ? options_.budget + needed - shortage.largest : 0);
  return shortage;
}

// There would be room for each storage in turn, but not for what has to be resident together.
Shortage Engine::thrashing(Bytes needed) const {
  Shortage shortage = this->shortage(needed);
  shortage.in_circles = true;
  return shortage;
}

}  // namespace coop
