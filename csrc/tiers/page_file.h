// A tier in a file.
//
// The file is unlinked as soon as it is open, so that nothing is left behind however the process
// ends. A slot is a piece of the file and is reused for the same size. Bytes that are read are
// compared with the digest of what was written.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tiers/tier.h"

namespace coop {

class PageFile final : public Tier {
 public:
  // The file is made in this folder when the first page is written. `limit`: bytes that it may grow
  // to; 0: no limit. `name`: what its name begins with.
  explicit PageFile(std::string folder, Bytes limit = 0, std::string name = "coop-pages")
      : folder_(std::move(folder)), name_(std::move(name)), limit_(limit) {}
  ~PageFile() override;
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  // Whether the file can be opened; if not, errno says why.
  bool open();

  std::uint32_t write(const void* memory, Bytes bytes) override;
  bool read(std::uint32_t slot, void* memory) override;
  void drop(std::uint32_t slot) override;

 private:
  struct Slot {
    Bytes offset = 0, bytes = 0;
    std::uint64_t digest = 0;
    std::uint32_t next = 0;  // the next slot of its list; 0: none
  };
  bool open_unlocked();
  void give_back(std::uint32_t number);
  // A list is the number of its first slot; 0: it is empty. Lists are linked through the slots, so
  // that dropping one needs no memory.
  void put(std::uint32_t& list, std::uint32_t number);
  std::uint32_t take(std::uint32_t& list);

  const std::string folder_, name_;
  const Bytes limit_;
  int file_ = -1;
  int owner_ = 0;   // the process that made the file: a forked one must not write to it
  int broken_ = 0;  // errno of the open that failed
  Bytes end_ = 0;
  std::vector<Slot> slots_{1};
  std::uint32_t bare_ = 0;                         // slots without a piece of the file
  std::unordered_map<Bytes, std::uint32_t> free_;  // unused slots with a piece, by size
};

}  // namespace coop
