// The bytes that a kernel takes, packed: as if it ran in empty memory, each of its requests at the lowest place where it
// fits.
//
// More than the most that it has at once: what it gives back in the middle leaves a hole that the next request may not fit
// into. When the op runs again where there is hardly any room, these are the bytes that count.
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
    auto place = pieces_.end();
    if (holes_) place = hole_for(block.bytes);
    const Bytes at = place == pieces_.begin() ? 0 : std::prev(place)->end();
    pieces_.insert(place, {at, block.bytes, block.offset});
    most_ = std::max(most_, at + block.bytes);
  }
  // Blocks that it does not know are somebody else's.
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
    Bytes offset;  // of its block in the arena
    Bytes end() const { return at + bytes; }
  };

  // The piece behind the first hole that is large enough.
  std::vector<Piece>::iterator hole_for(Bytes bytes) {
    Bytes end = 0;
    for (auto piece = pieces_.begin(); piece != pieces_.end(); end = piece++->end()) {
      if (piece->at - end >= bytes) return piece;
    }
    return pieces_.end();
  }

  std::vector<Piece> pieces_;  // in the order of their places
  bool holes_ = false;         // there may be some between them
  Bytes most_ = 0;
};

}  // namespace coop
