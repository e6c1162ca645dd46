// Memory outside of the arena, up to a limit. A slot is used again for the same size: its pages are there already.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "tier.h"

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
  };
  bool make_room(Bytes bytes);

  const Bytes limit_;
  Bytes taken_ = 0;  // by slots, in use or not
  std::vector<Slot> slots_{1};
  std::vector<std::uint32_t> numbers_;                          // of slots without memory
  std::unordered_map<Bytes, std::vector<std::uint32_t>> free_;  // slots with memory and nothing in it, by size
};

}  // namespace coop
