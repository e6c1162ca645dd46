// Collects events while somebody watches.
#pragma once

#include <utility>
#include <vector>

#include "engine/events.h"
#include "engine/storage.h"

namespace coop {

class Journal {
 public:
  explicit Journal(const Clock& clock) : clock_(clock) {}

  void watch(bool on) { watching_ = on; }
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

 private:
  const Clock& clock_;
  std::vector<Event> events_;
  bool watching_ = false;
};

}  // namespace coop
