// A tier: where the bytes of swapped storages are kept.
#pragma once

#include <cstdint>
#include <mutex>

#include "engine/types.h"

namespace coop {

// Transfers run concurrently. Everything else happens under one lock for all tiers. The thread that
// forks holds this lock, so that the child finds every tier in a consistent state.
class Tier {
 public:
  virtual ~Tier() = default;
  // Returns the slot, from 1 on; 0: it could not be written.
  virtual std::uint32_t write(const void* memory, Bytes bytes) = 0;
  // False: the bytes have changed, or cannot be read.
  virtual bool read(std::uint32_t slot, void* memory) = 0;
  virtual void drop(std::uint32_t slot) = 0;

  // The one lock of all tiers. A thread that forks holds it meanwhile.
  static std::mutex& lock() {
    static auto& only = *new std::mutex;
    return only;
  }
};

}  // namespace coop
