#include "host_tier.h"

#include <cstdlib>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace coop {

namespace {

// As memcpy does, past the caches: nobody reads these bytes soon, and what ops have in the caches stays there. Two thirds
// of the time for large storages.
void copy_past_caches(void* to, const void* from, Bytes bytes) {
#ifdef __SSE2__
  using Line = __m128i[4];
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  if (reinterpret_cast<std::uintptr_t>(target) % sizeof(__m128i) == 0) {
    for (; bytes >= sizeof(Line); bytes -= sizeof(Line), target += sizeof(Line), source += sizeof(Line)) {
      Line line;
      for (int i = 0; i < 4; ++i) line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source) + i);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(target) + i, line[i]);
    }
    _mm_sfence();  // before anybody is told
  }
  std::memcpy(target, source, bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace

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
  copy_past_caches(to, memory, bytes);
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
  copy_past_caches(memory, slot.memory, slot.bytes);
  return true;
}

void HostTier::drop(std::uint32_t number) {
  const std::lock_guard<std::mutex> held(lock());
  free_[slots_.at(number).bytes].push_back(number);
}

}  // namespace coop
