// A stretch of the arena.
#pragma once

#include "engine/types.h"

namespace coop {

// Free, raw (handed out, not yet known to be anybody's storage: a kernel's scratch, or an output whose op has not
// finished), or holding one storage. The arena writes all of it.
struct alignas(64) Block {
  enum class State : std::uint8_t { free, raw, used };

  // What a search looks at comes first, in one line of the cache.
  Block* next = nullptr;  // neighbours in address order
  Block* prev = nullptr;
  Storage* storage = nullptr;  // set when used
  Chunk* chunk = nullptr;      // that it belongs to
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
  // Of the holes directly before and behind it.
  Bytes free_beside() const {
    const auto free_bytes = [](const Block* beside) { return beside && beside->free() ? beside->bytes : 0; };
    return free_bytes(prev) + free_bytes(next);
  }
};

// Neighbouring blocks.
struct Run {
  Block* first = nullptr;  // null: there is none
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
