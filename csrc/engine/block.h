// A stretch of the arena.
#pragma once

#include "engine/types.h"

namespace coop {

// Free, raw, or holding one storage. Raw: handed out, but not (yet) a storage: a kernel's scratch,
// or an output whose op has not finished. The arena writes these fields;
// Blocks may pass a block on to another storage.
struct alignas(64) Block {
  enum class State : std::uint8_t { free, raw, used };

  // What a search reads comes first, in one cache line.
  Block* next = nullptr;  // neighbours in address order
  Block* prev = nullptr;
  Storage* storage = nullptr;  // set when used
  Chunk* chunk = nullptr;      // the chunk that it belongs to
  Bytes offset = 0;
  Bytes bytes = 0;
  State state = State::free;

  // Links of the tree of free blocks.
  std::uint32_t priority = 0;
  Block* left = nullptr;
  Block* right = nullptr;
  Bytes largest = 0;  // in this subtree

  Bytes end() const { return offset + bytes; }
  bool free() const { return state == State::free; }
  // Bytes of the holes directly below and above it.
  Bytes free_beside() const {
    const auto free_bytes = [](const Block* beside) { return beside && beside->free() ? beside->bytes : 0; };
    return free_bytes(prev) + free_bytes(next);
  }
};

// Neighbouring blocks, from `first` to `last`.
struct Run {
  Block* first = nullptr;  // null: the run is empty
  Block* last = nullptr;

  explicit operator bool() const { return first != nullptr; }
  template <typename Visit>
  void each(Visit visit) const {
    for (Block* block = first;; block = block->next) {
      visit(*block);
      if (block == last) break;
    }
  }
};

}  // namespace coop
