// A file that storages are paged to.
//
// It has no name as soon as it is open, so that nothing is left behind however the process ends. A slot is a piece of it, used
// again for the same size. What comes back is compared with the digest of what went out.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tiers/tier.h"

namespace coop {

class PageFile final : public Tier {
 public:
  // In this folder; opened when the first page is written. `limit`: bytes that it may grow to; 0: any.
  explicit PageFile(std::string folder, Bytes limit = 0) : folder_(std::move(folder)), limit_(limit) {}
  ~PageFile() override;
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  // Whether there can be such a file; else errno says why.
  bool open();

  std::uint32_t write(const void* memory, Bytes bytes) override;
  bool read(std::uint32_t slot, void* memory) override;
  void drop(std::uint32_t slot) override;

 private:
  struct Slot {
    Bytes offset = 0, bytes = 0;
    std::uint64_t digest = 0;
    std::uint32_t next = 0;  // in its list
  };
  bool open_unlocked();
  void give_back(std::uint32_t number);
  // Lists, linked through the slots, so that to drop one takes no memory: the number of the first; 0: it is empty.
  void put(std::uint32_t& list, std::uint32_t number);
  std::uint32_t take(std::uint32_t& list);

  const std::string folder_;
  const Bytes limit_;
  int file_ = -1;
  int owner_ = 0;   // the process: a forked one has the same file and another idea of what is in it
  int broken_ = 0;  // errno of the open that failed
  Bytes end_ = 0;
  std::vector<Slot> slots_{1};
  std::uint32_t bare_ = 0;                         // slots without a piece of it
  std::unordered_map<Bytes, std::uint32_t> free_;  // slots with nothing in them, by size
};

}  // namespace coop
