// A tier: where the bytes of storages go that leave the arena and are not made again.
#pragma once

#include <cstdint>

#include "types.h"

namespace coop {

class Tier {
 public:
  virtual ~Tier() = default;
  // The slot, from 1 on; 0: it could not be written.
  virtual std::uint32_t write(const void* memory, Bytes bytes) = 0;
  // False: the bytes are not what they were, or cannot be read.
  virtual bool read(std::uint32_t slot, void* memory) = 0;
  virtual void drop(std::uint32_t slot) = 0;
};

}  // namespace coop
