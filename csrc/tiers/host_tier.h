// Memory outside of the arena, up to a limit. A slot is used again for the same size: its pages are there already.
//
// Slots that are not in use are linked through themselves, so that to drop one takes no memory.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "tiers/tier.h"

namespace coop {

class HostTier final : public Tier {
 public:
  // `limit`: bytes; 0: any.
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
    std::uint32_t next = 0;  // in its list
  };
  bool make_room(Bytes bytes);
  // Lists: the number of the first slot; 0: it is empty.
  void put(std::uint32_t& list, std::uint32_t number);
  std::uint32_t take(std::uint32_t& list);

  const Bytes limit_;
  Bytes taken_ = 0;  // by slots, in use or not
  std::vector<Slot> slots_{1};
  std::uint32_t bare_ = 0;                         // slots without memory
  std::unordered_map<Bytes, std::uint32_t> free_;  // slots with memory and nothing in it, by size
};

}  // namespace coop
