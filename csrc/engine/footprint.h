// The bytes that a kernel takes when they are packed: as if it ran in empty memory, and each
// request went to the lowest place where it fits.
//
// This may exceed the most bytes in use at once: a piece that is freed early leaves a hole that the
// next request may not fit into. It is what the op needs to run again when memory is nearly full.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/block.h"

namespace coop {

class Footprint {
 public:
  // An op begins.
  void begin() {
    pieces_.clear();
    holes_ = false;
    most_ = 0;
  }
  void take(const Block& block) {
    if (holes_) [[unlikely]] {
      const auto place = hole_for(block.bytes);
      const Bytes at = place == pieces_.begin() ? 0 : std::prev(place)->end();
      pieces_.insert(place, {at, block.bytes, block.offset});
      most_ = std::max(most_, at + block.bytes);
      return;
    }
    const Bytes at = pieces_.empty() ? 0 : pieces_.back().end();
    pieces_.push_back({at, block.bytes, block.offset});
    most_ = std::max(most_, at + block.bytes);
  }
  // Ignores blocks of others.
  void give_back(const Block& block) {
    const auto found = std::find_if(pieces_.rbegin(), pieces_.rend(),
                                    [&](const Piece& piece) { return piece.offset == block.offset; });
    if (found == pieces_.rend()) return;
    holes_ = holes_ || found != pieces_.rbegin();
    pieces_.erase(std::next(found).base());
  }

  Bytes most() const { return most_; }

 private:
  struct Piece {
    Bytes at, bytes;
    Bytes offset;  // of its real block in the arena
    Bytes end() const { return at + bytes; }
  };

  // The piece behind the lowest hole that is large enough.
  std::vector<Piece>::iterator hole_for(Bytes bytes) {
    Bytes end = 0;
    for (auto piece = pieces_.begin(); piece != pieces_.end(); end = piece++->end()) {
      if (piece->at - end >= bytes) return piece;
    }
    return pieces_.end();
  }

  std::vector<Piece> pieces_;  // in address order
  bool holes_ = false;         // there may be holes between them
  Bytes most_ = 0;
};

}  // namespace coop
