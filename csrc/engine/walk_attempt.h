// One call of bring_back, step by step. Part of walk.cpp; no other file includes it.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "engine/walk.h"

namespace coop {

namespace walking {

inline Storage* storage_of(Storage* storage) { return storage; }
inline Storage* storage_of(const Edge& edge) { return edge.storage; }

// The absent storage that needs the most room to bring back. It comes first, because the fewer
// others are kept then, the better.
template <typename List>
Storage* hungriest_absent(const List& list) {
  Storage* found = nullptr;
  for (const auto& item : list) {
    Storage* storage = storage_of(item);
    if (storage->absent() && (!found || need_of(*storage) > need_of(*found))) found = storage;
  }
  return found;
}

}  // namespace walking

// Pins that end with this object.
class Walk::Pins {
 public:
  Pins() = default;
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;
  ~Pins() { release_from(0); }

  std::size_t count() const { return storages_.size(); }
  void add(Storage& storage) {
    ++storage.claims.pins;
    storages_.push_back(&storage);
  }
  void remove(Storage& storage) {
    const auto found = std::find(storages_.begin(), storages_.end(), &storage);
    if (found == storages_.end()) return;
    --storage.claims.pins;
    storages_.erase(found);
  }
  void release_from(std::size_t index) {
    while (storages_.size() > index) {
      --storages_.back()->claims.pins;
      storages_.pop_back();
    }
  }

 private:
  std::vector<Storage*> storages_;
};

// The state of one call of bring_back: which ops wait, which storages are on their way back, and
// what is pinned for them.
class Walk::Attempt {
 public:
  Attempt(Walk& walk, std::span<Storage* const> goals) : walk_(walk), goals_(goals), start_(walk.clock_.now) {
    ++walk_.walking_;
    walk_.lineage_.missing(goals, waiting_);
    walk_.lineage_.find_needs(waiting_);
    for (Op* op : waiting_) want(*op, true);
    for (Storage* goal : goals) ++goal->claims.wanted;
    const auto swapped = [](const Storage* goal) { return goal->copy.page != 0; };
    all_ = waiting_.size() + static_cast<std::size_t>(std::count_if(goals.begin(), goals.end(), swapped));
  }
  ~Attempt() {
    --walk_.walking_;
    walk_.room_.let_wanted_leave(true);
    want_nothing();
    for (Storage* goal : goals_) --goal->claims.wanted;
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  void run() {
    while (advance()) {
    }
    if (!schedule_) return;
    kept_.release_from(0);
    want_nothing();
    walk_.run_schedule(goals_);
  }
  // There was no room at some time, and no schedule took over: it might not succeed the next time.
  bool lucky() const { return rescued_ && !schedule_; }

 private:
  static constexpr Seconds kPatience = 1;  // time allowed for a recomputation that may never end

  // A storage that is on its way back.
  struct Frame {
    Storage* goal;
    std::size_t kept;  // pins from this index on are for this storage
  };

  static void want(Op& op, bool on) {
    op.waiting = on;
    for (const Edge& edge : op.edges()) edge.storage->claims.wanted += on ? 1 : -1;
  }
  void want_nothing() {
    for (Op* op : waiting_) {
      if (op->waiting) want(*op, false);
    }
  }

  // One step. False: all goals are back, or a schedule takes over.
  bool advance() {
    if (frames_.empty()) {
      Storage* goal = walking::hungriest_absent(goals_);
      if (!goal) return false;
      frames_.push_back({goal, kept_.count()});
    }
    const auto [goal, from] = frames_.back();
    if (goal->resident()) {
      kept_.release_from(from);
      frames_.pop_back();
      if (holding_on_) kept_.add(*goal);
      return true;
    }
    Op* op = goal->copy.page ? nullptr : goal->producer;
    if (!op && !goal->copy.page) walk_.throw_lost(*goal);  // it was lost earlier, and a goal depends on it
    if (op && !op->waiting) {                              // its output has left again
      waiting_.push_back(op);
      want(*op, true);
    }
    if (Storage* absent = op ? walking::hungriest_absent(op->edges()) : nullptr) {
      frames_.push_back({absent, kept_.count()});
      return true;
    }
    count_return(*goal);
    if (returns_ == 16 + 4 * all_ && walk_.options_.rescue) {  // the same storages may be evicting each other
      start_anew();
      return !schedule_;
    }
    constexpr std::size_t kTwice = 2;  // from then on, wanted storages leave only as a last resort
    walk_.room_.let_wanted_leave(returns_ <= kTwice * all_);
    kept_.release_from(from);
    if (op) {
      for (const Edge& edge : op->edges()) kept_.add(*edge.storage);
    }
    try {
      if (op) {
        const double density = op->cost / static_cast<double>(std::max<Bytes>(op->output_bytes, 1));
        walk_.replay(*op, walk_.room_.side_of(density));
      } else {
        walk_.read_now(*goal);
      }
    } catch (const Shortage&) {
      if (!walk_.options_.rescue || rescues_ == 3) throw;
      rescue();
      return !schedule_;
    }
    rescues_ = 0;
    if (!op) return true;
    kept_.release_from(from);
    if (op->waiting) want(*op, false);
    if (walk_.options_.keep_dead) return true;
    for (const Edge& edge : op->edges()) {
      if (!edge.storage->held && !edge.storage->claims.wanted) walk_.blocks_.evict_early(*edge.storage);
    }
    return true;
  }

  // Storages that are evicted during the walk may have to be brought back again. This limit makes
  // sure that the walk ends.
  void count_return(const Storage& goal) {
    ++returns_;
    const std::size_t many = 64 + 32 * all_, too_many = 64 + 256 * all_;
    if (returns_ <= many || (returns_ <= too_many && walk_.clock_.now - start_ <= kPatience)) return;
    Shortage shortage = walk_.room_.shortage(walk_.arena_.round(goal.bytes));
    shortage.in_circles = true;
    throw shortage;
  }

  // There was no room for the op or the read. Makes room, and the caller tries again. The frame's
  // pins are dropped: an in-place op may have consumed its input, or an input may have left.
  void rescue() {
    rescued_ = true;
    switch (++rescues_) {
      case 1: walk_.room_.pack(); break;
      case 2: walk_.room_.compact(false); break;
      default:
        holding_on_ = !anew_;  // the second time, pin less: it may have kept the wrong storages
        start_anew();
    }
    if (!frames_.empty()) kept_.release_from(frames_.back().kept);
  }

  void start_anew() {
    kept_.release_from(0);
    frames_.clear();
    walk_.room_.compact(true);
    schedule_ = walk_.schedule_fits(goals_);
    rescued_ = anew_ = true;
    if (schedule_) return;
    std::vector<Op*> absent;  // more is absent than before, so needs have changed
    walk_.lineage_.missing(goals_, absent);
    walk_.lineage_.find_needs(absent);
  }

  Walk& walk_;
  const std::span<Storage* const> goals_;
  const Seconds start_;
  std::vector<Op*> waiting_;  // ops that will run again, or have run
  std::size_t all_ = 0;       // how much was missing at the beginning
  std::size_t returns_ = 0;   // storages brought back so far
  std::vector<Frame> frames_;
  Pins kept_;
  bool holding_on_ = true;  // keep storages that were brought back pinned
  bool schedule_ = false;   // a schedule takes over
  bool anew_ = false;       // it has started anew, because no schedule fitted
  bool rescued_ = false;
  int rescues_ = 0;  // since a storage last came back
};

}  // namespace coop
