// Collects events while somebody watches. With checks of level 2 it also explains: it notes what a
// referee has to know to judge a choice (tests/reference).
#pragma once

#include <utility>
#include <vector>

#include "engine/events.h"
#include "engine/storage.h"

namespace coop {

class Journal {
 public:
  Journal(const Clock& clock, bool explains) : clock_(clock), explains_(explains) {}

  void watch(bool on) { watching_ = on; }
  bool explains() const { return watching_ && explains_; }
  std::vector<Event> take() { return std::exchange(events_, {}); }

  void note(EventKind kind, const Storage* storage, Bytes offset, Bytes bytes, double value = 0, Seconds waited = 0) {
    if (watching_) [[unlikely]]
      events_.push_back({kind, clock_.now, storage ? storage->id : 0, offset, bytes, value, waited});
  }
  void note(EventKind kind, const Storage& storage, double value = 0, Seconds waited = 0) {
    const Block* block = storage.block;
    note(kind, &storage, block ? block->offset : 0, block ? block->bytes : 0, value, waited);
  }
  void note(EventKind kind, const Block& block) { note(kind, nullptr, block.offset, block.bytes); }
  void explain(EventKind kind, const Storage* storage, const Block* block, double value = 0) {
    if (explains()) [[unlikely]]
      note(kind, storage, block ? block->offset : 0, block ? block->bytes : 0, value);
  }

 private:
  const Clock& clock_;
  const bool explains_;
  std::vector<Event> events_;
  bool watching_ = false;
};

}  // namespace coop
