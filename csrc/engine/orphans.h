// Orphans: sources that nobody holds but recorded ops read. They exist for the lineage alone.
//
// They are checked again and again, in case they can go: new ones once after each op, the others in
// turn. Each op that runs pays for visiting a few recorded ops. A check that visits too many ops
// gives up, and the next ones wait until it has been paid for.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/storage.h"

namespace coop {

class Orphans {
 public:
  static constexpr std::ptrdiff_t kMost = 4096;  // ops visited for one orphan

  bool empty() const { return all_.empty(); }
  Bytes bytes() const { return bytes_; }
  Bytes most_bytes() const { return most_bytes_; }  // so far

  void add(Storage& source) {
    if (source.review.orphan || source.review.returns) return;
    all_.push_back(&source);
    source.review.orphan = static_cast<std::uint32_t>(all_.size());
    bytes_ += source.bytes;
    most_bytes_ = std::max(most_bytes_, bytes_);
    ++young_;
  }

  // The last of the list takes its place.
  void remove(Storage& source) {
    if (!source.review.orphan) return;
    Storage* last = all_.back();
    all_[source.review.orphan - 1] = last;
    last->review.orphan = std::exchange(source.review.orphan, 0);
    if (last == &source) last->review.orphan = 0;
    all_.pop_back();
    bytes_ -= source.bytes;
    young_ = std::min(young_, all_.size());
  }

  void expect_back(Storage& source, bool returns) {
    if (returns) remove(source);
    source.review.returns = returns;
  }

  void clear() {
    while (!all_.empty()) remove(*all_.back());
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (Storage* source : all_) visit(*source);
  }

  // `look` gets an orphan and a limit. It returns how many ops it visited, at most one more than
  // the limit, and must not add or remove orphans.
  template <typename Look>
  void tend(Look look) {
    constexpr std::ptrdiff_t kPerOp = 4, kShort = 64;
    for (; young_; --young_) look(*all_[all_.size() - young_], kShort);
    credit_ = std::min(credit_ + kPerOp, kMost);
    for (std::size_t i = 0; i < all_.size() && credit_ > 0; ++i) {
      const auto seen = static_cast<std::ptrdiff_t>(look(*all_[next_++ % all_.size()], kMost));
      credit_ = seen > kShort ? credit_ - seen : std::max<std::ptrdiff_t>(credit_ - seen, 0);
    }
  }

 private:
  std::vector<Storage*> all_;
  Bytes bytes_ = 0, most_bytes_ = 0;
  std::size_t young_ = 0;  // how many at the end of the list are new since the last op
  std::size_t next_ = 0;
  std::ptrdiff_t credit_ = 0;
};

}  // namespace coop
