// A tier in memory outside the arena, up to a limit. A slot is reused for the same size: its memory
// is mapped already.
//
// Unused slots form linked lists through the slots themselves, so that dropping one needs no
// memory.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "tiers/tier.h"

namespace coop {

class HostTier final : public Tier {
 public:
  // `limit`: bytes; 0: no limit.
  explicit HostTier(Bytes limit) : limit_(limit) {}
  ~HostTier() override;
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  std::uint32_t write(const void* memory, Bytes bytes) override;
  bool read(std::uint32_t slot, void* memory) override;
  void drop(std::uint32_t slot) override;

 private:
  struct Slot {
    void* memory = nullptr;
    Bytes bytes = 0;
    std::uint32_t next = 0;  // the next slot of its list; 0: none
  };
  bool make_room(Bytes bytes);
  // A list is the number of its first slot; 0: it is empty.
  void put(std::uint32_t& list, std::uint32_t number);
  std::uint32_t take(std::uint32_t& list);

  const Bytes limit_;
  Bytes taken_ = 0;  // by all slots, used or not
  std::vector<Slot> slots_{1};
  std::uint32_t bare_ = 0;                         // slots without memory
  std::unordered_map<Bytes, std::uint32_t> free_;  // unused slots with memory, by size
};

}  // namespace coop
