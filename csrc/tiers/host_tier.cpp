#include "tiers/host_tier.h"

#include <cstdlib>
#include <cstring>
#include <utility>

// Sanitizers do not see non-temporal stores.
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COOP_PAST_CACHES
#include <emmintrin.h>
#endif

namespace coop {

namespace {

// memcpy with non-temporal stores: nobody reads these bytes soon, and the running ops keep their
// data in the caches. Takes two thirds of memcpy's time for large storages.
void copy_past_caches(void* to, const void* from, Bytes bytes) {
#ifdef COOP_PAST_CACHES
  using Line = __m128i[4];
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  if (reinterpret_cast<std::uintptr_t>(target) % sizeof(__m128i) == 0) {
    for (; bytes >= sizeof(Line); bytes -= sizeof(Line), target += sizeof(Line), source += sizeof(Line)) {
      Line line;
      for (int i = 0; i < 4; ++i) line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source) + i);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(target) + i, line[i]);
    }
    _mm_sfence();  // the stores are visible before the transfer counts as done
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

void HostTier::put(std::uint32_t& list, std::uint32_t number) { slots_[number].next = std::exchange(list, number); }

std::uint32_t HostTier::take(std::uint32_t& list) { return std::exchange(list, slots_[list].next); }

// Everything that may throw comes before the first change.
std::uint32_t HostTier::write(const void* memory, Bytes bytes) {
  if (!bytes) return 0;
  std::uint32_t number = 0;
  void* to = nullptr;
  {
    const std::lock_guard<std::mutex> held(lock());
    std::uint32_t& unused = free_[bytes];
    if (!unused) {
      if (!make_room(bytes)) return 0;
      if (!bare_) {
        slots_.emplace_back();
        put(bare_, static_cast<std::uint32_t>(slots_.size() - 1));
      }
      void* made = std::malloc(bytes);
      if (!made) return 0;
      number = take(bare_);
      slots_[number] = {made, bytes, 0};
      taken_ += bytes;
    } else {
      number = take(unused);
    }
    to = slots_[number].memory;
  }
  copy_past_caches(to, memory, bytes);
  return number;
}

// Frees unused slots of other sizes until there is room below the limit.
bool HostTier::make_room(Bytes bytes) {
  if (!limit_ || taken_ + bytes <= limit_) return true;
  for (auto& [size, unused] : free_) {
    while (unused && taken_ + bytes > limit_) {
      const std::uint32_t number = take(unused);
      std::free(slots_[number].memory);
      slots_[number] = {};
      put(bare_, number);
      taken_ -= size;
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
  put(free_.at(slots_.at(number).bytes), number);  // the list for this size exists since it was written
}

}  // namespace coop
