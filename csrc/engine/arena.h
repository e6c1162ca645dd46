// One contiguous address range of exactly the budget's size, cut into blocks in address order.
//
// The arena deals in offsets: the bytes themselves belong to the driver. It never grows (rule 1).
// Neighbouring free blocks are always joined. Finding, splitting and joining are logarithmic in the
// number of free blocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "engine/chunk.h"
#include "engine/free_tree.h"
#include "engine/options.h"
#include "engine/pool.h"

namespace coop {

class Arena {
 public:
  Arena(Bytes capacity, Bytes alignment, Placement placement);

  Bytes capacity() const { return capacity_; }
  Bytes free_bytes() const { return free_bytes_; }
  Bytes raw_bytes() const { return raw_bytes_; }
  Bytes largest_free() const { return free_.largest(); }
  // Rounds up to the alignment. At least one unit, so that every block has its own address; clamped
  // so that it cannot overflow.
  Bytes round(Bytes bytes) const {
    return (std::clamp<Bytes>(bytes, 1, SIZE_MAX / 2) + alignment_ - 1) / alignment_ * alignment_;
  }
  std::size_t blocks() const { return pool_.size(); }
  Block* first() const { return first_; }
  Block* last() const { return last_; }
  Chunk* first_chunk() const { return first_chunk_; }

  // A raw block of at least that size, or null. `bytes` is rounded up here.
  Block* allocate(Bytes bytes, Side side);
  // The same at this offset; null if those bytes are not free, or if placement is not two_ended.
  Block* allocate_at(Bytes offset, Bytes bytes);
  // The same, cut from this free block (which must be large enough).
  Block* take(Block* hole, Bytes bytes, Side side);
  // Gives a block back; returns the free block it has become part of.
  Block* release(Block* block);
  // Moves a block to the low edge of the free block just below it. Its bytes are the caller's to
  // copy. Returns the free block now behind it.
  Block* slide_down(Block* block);

  // Adds free bytes at the high end. Rule 1 allows this only after the budget has ended, or to
  // measure an op that has failed.
  void extend(Bytes bytes);
  // Takes as many bytes away again; false: some of them are in use.
  bool shrink(Bytes bytes);

  // The raw block at this offset; null if there is none.
  Block* raw_at(Bytes offset) const;
  // A raw block begins to hold a storage; and becomes raw again.
  void occupy(Block* block, Storage* storage);
  void vacate(Block* block);

  // One block to remember for each side, or null. When that block goes, a neighbour takes its
  // place.
  Block* mark(Side side) const { return marks_[static_cast<int>(side)]; }
  void set_mark(Side side, Block* block) { marks_[static_cast<int>(side)] = block; }

  // Throws std::logic_error when the blocks do not tile the arena or two free ones touch.
  void check(Seconds ran = 0) const;

 private:
  Block* lowest_hole(Bytes bytes) const;
  // Raw blocks by offset: open addressing, linear probing.
  class RawTable {
   public:
    RawTable() : slots_(64) {}
    void insert(Block* block);
    void erase(const Block* block);
    Block* find(Bytes offset) const;

   private:
    std::size_t home(Bytes offset) const { return (offset * 0x9E3779B97F4A7C15ull >> 20) & (slots_.size() - 1); }
    std::vector<Block*> slots_;
    std::size_t count_ = 0;
  };

  void link_after(Block* block, Block* fresh);
  void unlink(Block* block);
  void opened(const Block* hole);
  void divide(Chunk* chunk);
  void unite(Chunk* chunk);
  void check_chunks(Seconds ran) const;

  Bytes capacity_;
  Bytes alignment_;
  Placement placement_;
  Bytes free_bytes_;
  Bytes raw_bytes_ = 0;
  FreeTree free_;
  Pool<Block> pool_;
  Pool<Chunk> chunks_;
  RawTable raw_;
  Block* first_ = nullptr;
  Block* last_ = nullptr;
  Chunk* first_chunk_ = nullptr;
  std::array<Block*, 2> marks_{};
};

}  // namespace coop
