// A simple schedule: the ops that bring storages back, each run once, and the bytes that they need.
//
// It is depth first; the input that needs the most room comes first. A storage is kept from when it
// is made until the last op that reads it has run; a goal, to the end. Swapped storages are read
// again for each op that needs them. So the most bytes that are needed at once are known before the
// first op runs: this proves that a budget is enough.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "engine/op.h"

namespace coop {

class Schedule {
 public:
  // `now`: from what is resident now, after everything that can leave has left. `scratch`: as if
  // everything had left that ever can.
  enum class From : std::uint8_t { now, scratch };

  Schedule(std::span<Storage* const> goals, From from, Bytes alignment);

  const std::vector<Op*>& order() const { return order_; }
  // How many ops of the schedule read the storage, plus one if it is a goal.
  std::uint32_t uses(const Storage& storage) const {
    const auto found = uses_.find(&storage);
    return found == uses_.end() ? 0 : found->second;
  }
  // The most bytes needed at once, besides what cannot leave.
  Bytes most() const { return most_; }
  // The same, plus the scratch that the ops took when they ran.
  Bytes most_with_scratch() const { return most_with_scratch_; }

 private:
  bool absent(const Storage& storage) const;
  bool outside(const Storage& storage) const;
  Bytes round(Bytes bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }
  Bytes need(const Storage& storage) const { return absent(storage) ? storage.producer->need : round(storage.bytes); }
  void find_order(std::span<Storage* const> goals, bool by_need);
  void find_need(Op& op);
  void measure(std::span<Storage* const> goals);

  const From from_;
  const Bytes alignment_;
  std::vector<Op*> order_;
  std::unordered_map<const Storage*, std::uint32_t> uses_;
  Bytes most_ = 0, most_with_scratch_ = 0;
};

}  // namespace coop
