// A fast digest of bytes, not cryptographic: equal digests mean, in practice, equal bytes. Never 0.
#pragma once

#include <cstdint>
#include <cstring>

namespace coop {

inline std::uint64_t digest_of(const void* memory, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  const char* at = static_cast<const char*>(memory);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 32;
  }
  for (; bytes; --bytes, ++at) hash = (hash ^ static_cast<unsigned char>(*at)) * 0x100000001b3ull;
  return hash | 1;
}

}  // namespace coop
