// The trail of a storage: the recorded ops that lie behind it through storages that nobody holds.
// All of them may have to run again to bring it back, and their records are kept for its sake.
//
// A state that is carried from step to step (an average, a random walk, the keys and values of a
// decoder) has a trail as long as the program. So trails are cut: a storage is committed if the
// records of its trail take more memory than the storage itself, or if its trail is longer than
// anybody should run again. Storages that autograd holds have short trails, however deep the
// network is.
//
// A trail is counted only if it is old: a younger one may end by itself, like that of a forward
// pass without autograd. Each op knows the number of the oldest op of its trail, updated as
// storages die; where an update gave up, the number is too high. It only tells when to count.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/op.h"

namespace coop {

class Trails {
 public:
  // The longest trail that a storage of this size may have.
  static std::size_t longest(Bytes bytes) {
    constexpr Bytes kRecord = 1024;  // about what an op, its outputs and its arguments take
    constexpr std::size_t kShort = 64, kLong = 1024;
    return std::clamp<std::size_t>(bytes / kRecord, kShort, kLong);
  }

  static bool old(const Storage& storage) {
    constexpr std::uint64_t kOld = 4096;  // ops recorded since it began: more than most steps have
    const Op* op = storage.producer;
    return op && op->number - op->oldest >= kOld;
  }

  // The storage is no longer held: the trails of its consumers now include its own. Returns how
  // many ops it visited.
  std::size_t died(const Storage& storage) {
    if (!storage.producer) return 0;
    constexpr std::size_t kReach = 64;
    const std::uint64_t oldest = storage.producer->oldest;
    std::size_t seen = 0;
    dead_.assign(1, &storage);
    for (std::size_t next = 0; next < dead_.size(); ++next) {
      for (const Edge* edge = dead_[next]->consumers; edge; edge = edge->next) {
        if (seen == kReach) return seen;
        ++seen;
        Op& op = *edge->op;
        if (op.oldest <= oldest) continue;
        op.oldest = oldest;
        for (std::uint32_t i = 0; i < op.outputs_count; ++i) {
          Storage* output = op.outputs()[i];
          if (!output) continue;
          if (output->held) {
            consider(*output);
          } else {
            dead_.push_back(output);
          }
        }
      }
    }
    return seen;
  }

  // Queues the storage to be counted, if its trail is old.
  void consider(Storage& storage) {
    if (storage.review.long_trail || !old(storage)) return;
    storage.review.long_trail = true;
    to_count_.push_back(&storage);
  }

  void remove(Storage& storage) {
    if (std::exchange(storage.review.long_trail, false)) std::erase(to_count_, &storage);
  }

  void clear() {
    for (Storage* storage : to_count_) storage->review.long_trail = false;
    to_count_.clear();
  }

  // `count` returns how many ops it visited. After too many recent visits the remaining storages
  // are dropped from the queue until they are considered again.
  template <typename Count>
  void tend(Count count) {
    constexpr std::ptrdiff_t kPerOp = 8, kMost = 4096;
    credit_ = std::min(credit_ + kPerOp, kMost);
    for (Storage* storage : to_count_) {
      if (credit_ > 0) credit_ -= static_cast<std::ptrdiff_t>(count(*storage));
    }
    clear();
  }

 private:
  std::vector<Storage*> to_count_;
  std::vector<const Storage*> dead_;  // scratch
  std::ptrdiff_t credit_ = 0;
};

}  // namespace coop
