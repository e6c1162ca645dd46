#include "host_tier.h"

#include <cstdlib>
#include <cstring>

namespace coop {

HostTier::~HostTier() {
  for (const Slot& slot : slots_) std::free(slot.memory);
}

std::uint32_t HostTier::write(const void* memory, Bytes bytes) {
  std::uint32_t number = 0;
  void* to = nullptr;
  {
    const std::lock_guard<std::mutex> held(lock());
    std::vector<std::uint32_t>& spare = free_[bytes];
    if (!spare.empty()) {
      number = spare.back();
      spare.pop_back();
    } else {
      if (!bytes || !make_room(bytes)) return 0;
      void* made = std::malloc(bytes);
      if (!made) return 0;
      if (numbers_.empty()) {
        numbers_.push_back(static_cast<std::uint32_t>(slots_.size()));
        slots_.emplace_back();
      }
      number = numbers_.back();
      numbers_.pop_back();
      slots_[number] = {made, bytes};
      taken_ += bytes;
    }
    to = slots_[number].memory;
  }
  std::memcpy(to, memory, bytes);
  return number;
}

// Slots of other sizes that are not in use give way.
bool HostTier::make_room(Bytes bytes) {
  if (!limit_ || taken_ + bytes <= limit_) return true;
  for (auto& [size, spare] : free_) {
    while (!spare.empty() && taken_ + bytes > limit_) {
      Slot& slot = slots_[spare.back()];
      std::free(slot.memory);
      taken_ -= slot.bytes;
      slot = {};
      numbers_.push_back(spare.back());
      spare.pop_back();
    }
  }
  return taken_ + bytes <= limit_;
}

bool HostTier::read(std::uint32_t number, void* memory) {
  Slot slot;
  {
    const std::lock_guard<std::mutex> held(lock());
    slot = slots_.at(number);
  }
  std::memcpy(memory, slot.memory, slot.bytes);
  return true;
}

void HostTier::drop(std::uint32_t number) {
  const std::lock_guard<std::mutex> held(lock());
  free_[slots_.at(number).bytes].push_back(number);
}

}  // namespace coop
