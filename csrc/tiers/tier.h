// A tier: where the bytes of storages go that leave the arena and are not made again.
#pragma once

#include <cstdint>
#include <mutex>

#include "engine/types.h"

namespace coop {

// Transfers run beside each other, on threads. All that is not a transfer is done under one lock for all tiers, which
// nobody holds while the process is forked: a child finds every tier as it should be.
class Tier {
 public:
  virtual ~Tier() = default;
  // The slot, from 1 on; 0: it could not be written.
  virtual std::uint32_t write(const void* memory, Bytes bytes) = 0;
  // False: the bytes are not what they were, or cannot be read.
  virtual bool read(std::uint32_t slot, void* memory) = 0;
  virtual void drop(std::uint32_t slot) = 0;

  // Of all tiers: whoever forks holds it meanwhile.
  static std::mutex& lock() {
    static auto& only = *new std::mutex;
    return only;
  }
};

}  // namespace coop
