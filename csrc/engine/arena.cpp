// Blocks of the arena: find, split, join, slide.
#include "engine/arena.h"

#include <stdexcept>
#include <string>

namespace coop {

Arena::Arena(Bytes capacity, Bytes alignment, Placement placement)
    : capacity_(capacity / alignment * alignment),
      alignment_(alignment),
      placement_(placement),
      free_bytes_(capacity_),
      free_(placement == Placement::best_fit ? FreeOrder::size : FreeOrder::address) {
  Block* all = pool_.make();
  all->bytes = capacity_;
  first_ = last_ = all;
  all->chunk = first_chunk_ = chunks_.make();
  first_chunk_->first = all;
  first_chunk_->blocks = 1;
  free_.insert(all);
}

Block* Arena::allocate(Bytes bytes, Side side) {
  bytes = round(bytes);
  const bool best_fit = placement_ == Placement::best_fit;
  Block* hole = best_fit && side == Side::packed ? lowest_hole(bytes)
                : best_fit                       ? free_.smallest(bytes)
                : side == Side::high             ? free_.highest(bytes)
                                                 : free_.lowest(bytes);
  return hole ? take(hole, bytes, side) : nullptr;
}

// For holes that are kept by size: a linear search, rarely needed.
Block* Arena::lowest_hole(Bytes bytes) const {
  Block* block = first_;
  while (block && (block->state != Block::State::free || block->bytes < bytes)) block = block->next;
  return block;
}

Block* Arena::allocate_at(Bytes offset, Bytes bytes) {
  bytes = round(bytes);
  Block* hole = placement_ == Placement::two_ended ? free_.holding(offset) : nullptr;
  if (!hole || hole->end() - offset < bytes) return nullptr;
  Block* block = take(hole, hole->end() - offset, Side::high);
  if (block->bytes > bytes) {
    Block* rest = pool_.make();
    rest->offset = offset + bytes;
    rest->bytes = block->bytes - bytes;
    rest->state = Block::State::used;  // until release joins it with what is free
    block->bytes = bytes;
    raw_bytes_ -= rest->bytes;
    link_after(block, rest);
    release(rest);
  }
  return block;
}

Block* Arena::take(Block* hole, Bytes bytes, Side side) {
  bytes = round(bytes);
  free_.erase(hole);
  Block* block = hole;
  if (hole->bytes > bytes) {
    Block* rest = pool_.make();
    if (side != Side::high) {
      rest->offset = hole->offset + bytes;
      rest->bytes = hole->bytes - bytes;
      link_after(hole, rest);
    } else {  // the hole stays below, the new block lies above it
      rest->offset = hole->end() - bytes;
      rest->bytes = bytes;
      link_after(hole, rest);
      block = rest;
      rest = hole;
    }
    if (rest == hole) {
      rest->bytes -= bytes;
    } else {
      block->bytes = bytes;
    }
    free_.insert(rest);
  }
  block->state = Block::State::raw;
  free_bytes_ -= block->bytes;
  raw_bytes_ += block->bytes;
  raw_.insert(block);
  return block;
}

Block* Arena::release(Block* block) {
  if (block->state == Block::State::raw) {
    raw_.erase(block);
    raw_bytes_ -= block->bytes;
  }
  block->storage = nullptr;
  block->state = Block::State::free;
  free_bytes_ += block->bytes;
  if (Block* below = block->prev; below && below->state == Block::State::free) {
    free_.erase(below);
    below->bytes += block->bytes;
    unlink(block);
    pool_.release(block);
    block = below;
  }
  if (Block* above = block->next; above && above->state == Block::State::free) {
    free_.erase(above);
    block->bytes += above->bytes;
    unlink(above);
    pool_.release(above);
  }
  free_.insert(block);
  opened(block);
  return block;
}

Block* Arena::slide_down(Block* block) {
  Block* hole = block->prev;
  free_.erase(hole);
  const Bytes low = hole->offset;
  unlink(hole);
  block->offset = low;
  hole->offset = block->end();
  link_after(block, hole);
  if (Block* above = hole->next; above && above->state == Block::State::free) {
    free_.erase(above);
    hole->bytes += above->bytes;
    unlink(above);
    pool_.release(above);
  }
  free_.insert(hole);
  opened(hole);
  return hole;
}

// A hole has become larger: notes the blocks beside it in their chunks.
void Arena::opened(const Block* hole) {
  for (Block* beside : {hole->prev, hole->next}) {
    if (beside) beside->chunk->note(*beside);
  }
}

void Arena::extend(Bytes bytes) {
  bytes = bytes / alignment_ * alignment_;
  Block* fresh = pool_.make();
  fresh->offset = capacity_;
  fresh->bytes = bytes;
  fresh->state = Block::State::used;  // until release joins it with what is free
  link_after(last_, fresh);
  capacity_ += bytes;
  release(fresh);
}

bool Arena::shrink(Bytes bytes) {
  bytes = bytes / alignment_ * alignment_;
  Block* hole = last_;
  if (hole->state != Block::State::free || hole->bytes < bytes) return false;
  free_.erase(hole);
  hole->bytes -= bytes;
  capacity_ -= bytes;
  free_bytes_ -= bytes;
  if (hole->bytes) {
    free_.insert(hole);
  } else {
    unlink(hole);
    pool_.release(hole);
  }
  return true;
}

Block* Arena::raw_at(Bytes offset) const { return raw_.find(offset); }

void Arena::occupy(Block* block, Storage* storage) {
  raw_.erase(block);
  raw_bytes_ -= block->bytes;
  block->state = Block::State::used;
  block->storage = storage;
  block->chunk->note(*block);
}

void Arena::vacate(Block* block) {
  raw_bytes_ += block->bytes;
  block->state = Block::State::raw;
  block->storage = nullptr;
  raw_.insert(block);
}

void Arena::link_after(Block* block, Block* fresh) {
  fresh->prev = block;
  fresh->next = block->next;
  (block->next ? block->next->prev : last_) = fresh;
  block->next = fresh;

  Chunk* chunk = fresh->chunk = block->chunk;
  ++chunk->blocks;
  if (chunk->blocks > Chunk::kMost) divide(chunk);
}

void Arena::unlink(Block* block) {
  if (marks_[0] == block) marks_[0] = block->prev ? block->prev : block->next;
  if (marks_[1] == block) marks_[1] = block->next ? block->next : block->prev;
  (block->prev ? block->prev->next : first_) = block->next;
  (block->next ? block->next->prev : last_) = block->prev;

  Chunk* chunk = block->chunk;
  --chunk->blocks;
  if (chunk->first == block) chunk->first = block->next;
  const std::uint32_t enough = chunk->blocks ? Chunk::kMost / 2 : Chunk::kMost;
  if (chunk->next && chunk->blocks + chunk->next->blocks <= enough) {
    unite(chunk);
  } else if (chunk->prev && chunk->blocks + chunk->prev->blocks <= enough) {
    unite(chunk->prev);
  }
}

// The upper half of the blocks becomes a chunk of its own.
void Arena::divide(Chunk* chunk) {
  Chunk* upper = chunks_.make();
  upper->prev = chunk;
  upper->next = chunk->next;
  if (upper->next) upper->next->prev = upper;
  chunk->next = upper;

  upper->first = chunk->first;
  for (std::uint32_t i = 0; i < chunk->blocks / 2; ++i) upper->first = upper->first->next;
  upper->blocks = chunk->blocks - chunk->blocks / 2;
  chunk->blocks /= 2;
  Block* block = upper->first;
  for (std::uint32_t i = 0; i < upper->blocks; ++i, block = block->next) block->chunk = upper;
  upper->epoch = chunk->epoch;
  upper->own.until = chunk->own.until;
  upper->known.until = chunk->known.until;
  upper->add(*chunk);
}

// The blocks of the next chunk join this one.
void Arena::unite(Chunk* chunk) {
  Chunk* upper = chunk->next;
  Block* block = upper->first;
  for (std::uint32_t i = 0; i < upper->blocks; ++i, block = block->next) block->chunk = chunk;
  if (!chunk->blocks) chunk->first = upper->first;
  chunk->blocks += upper->blocks;
  chunk->add(*upper);
  chunk->next = upper->next;
  if (chunk->next) chunk->next->prev = chunk;
  chunks_.release(upper);
}

void Arena::check(Seconds ran) const {
  Bytes at = 0, free = 0, largest = 0;
  const Block* before = nullptr;
  for (const Block* block = first_; block; before = block, block = block->next) {
    const auto fail = [&](const char* what) {
      throw std::logic_error(std::string("rule 1: block at ") + std::to_string(block->offset) + " of " +
                             std::to_string(block->bytes) + " B: " + what);
    };
    if (block->offset != at) fail("does not start where the one before ends");
    if (block->bytes == 0) fail("is empty");
    if (block->prev != before) fail("is linked wrongly");
    if (block->state == Block::State::free) {
      if (before && before->state == Block::State::free) fail("free beside free");
      free += block->bytes;
      if (block->bytes > largest) largest = block->bytes;
    }
    if ((block->state == Block::State::used) != (block->storage != nullptr)) fail("has the wrong state");
    if (block->storage && block->storage->block != block) fail("is not where its storage says");
    at = block->end();
  }
  if (at != capacity_ || before != last_) throw std::logic_error("rule 1: the blocks do not fill the arena");
  if (free != free_bytes_) throw std::logic_error("rule 1: free bytes are counted wrongly");
  if (largest != free_.largest()) throw std::logic_error("rule 1: the tree of free blocks is wrong");
  check_chunks(ran);
}

void Arena::check_chunks(Seconds ran) const {
  const auto fail = [](const char* what) { throw std::logic_error(std::string("a chunk ") + what); };
  const Block* block = first_;
  const Chunk* before = nullptr;
  for (const Chunk* chunk = first_chunk_; chunk; before = chunk, chunk = chunk->next) {
    if (chunk->prev != before || chunk->first != block) fail("is linked wrongly");
    if (!chunk->blocks || chunk->blocks > Chunk::kMost) fail("has the wrong size");
    Chunk seen;
    seen.own.until = chunk->own.until;
    for (std::uint32_t i = 0; i < chunk->blocks; ++i, block = block->next) {
      if (!block || block->chunk != chunk) fail("is not the one of its block");
      if (block->storage) seen.note_ahead(*block, std::max(block->storage->outlook.next_use - ran, 0.0));
    }
    const auto below = [](const Bound& a, const Bound& b) {
      return a.rate < b.rate || a.density < b.density || a.oldest < b.oldest;
    };
    if (below(seen.own, chunk->own) || seen.moving < chunk->moving) fail("has bounds that do not hold");
  }
  if (block) fail("is missing at the end");
}

void Arena::RawTable::insert(Block* block) {
  if (++count_ * 2 > slots_.size()) {
    std::vector<Block*> old(slots_.size() * 2);
    old.swap(slots_);
    for (Block* other : old) {
      if (!other) continue;
      std::size_t i = home(other->offset);
      while (slots_[i]) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = other;
    }
  }
  std::size_t i = home(block->offset);
  while (slots_[i]) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = block;
}

void Arena::RawTable::erase(const Block* block) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = home(block->offset);
  while (slots_[i] != block) i = (i + 1) & mask;
  for (std::size_t j = i;;) {  // close the gap, so that every probe still ends at an empty slot
    slots_[i] = nullptr;
    std::size_t from;
    do {
      j = (j + 1) & mask;
      if (!slots_[j]) {
        --count_;
        return;
      }
      from = home(slots_[j]->offset);
    } while (i <= j ? (i < from && from <= j) : (i < from || from <= j));
    slots_[i] = slots_[j];
    i = j;
  }
}

Block* Arena::RawTable::find(Bytes offset) const {
  std::size_t i = home(offset);
  while (slots_[i] && slots_[i]->offset != offset) i = (i + 1) & (slots_.size() - 1);
  return slots_[i];
}

}  // namespace coop
