// One bringing back, step by step. Part of walk.cpp, which alone includes it.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "engine/walk.h"

namespace coop {

namespace walking {

inline Storage* storage_of(Storage* storage) { return storage; }
inline Storage* storage_of(const Edge& edge) { return edge.storage; }

// The one that takes the most room to bring back: the fewer others are kept meanwhile, the better.
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

// Pins that end with it.
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

// One bringing back: what waits, what is on its way, what is kept for it.
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
  // If it comes through, nobody can say that it would the next time: there was no room for a schedule.
  bool lucky() const { return lucky_; }

 private:
  static constexpr Seconds kPatience = 1;  // with a recomputation that goes round in circles

  // A storage that is on its way back.
  struct Frame {
    Storage* goal;
    std::size_t kept;  // what is pinned for it lies behind this index
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
    if (!op && !goal->copy.page) walk_.throw_lost(*goal);  // it was lost before, and what is wanted was made from it
    if (op && !op->waiting) {                              // what it makes has left meanwhile
      waiting_.push_back(op);
      want(*op, true);
    }
    if (Storage* absent = op ? walking::hungriest_absent(op->edges()) : nullptr) {
      frames_.push_back({absent, kept_.count()});
      return true;
    }
    count_return(*goal);
    if (returns_ == 16 + 4 * all_ && walk_.options_.rescue) {  // it may go round in circles
      start_anew();
      return !schedule_;
    }
    constexpr std::size_t kTwice = 2;  // from then on, what is wanted stays if anything else can leave
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

  // What is evicted on the way may be needed twice, and that must end.
  void count_return(const Storage& goal) {
    ++returns_;
    const std::size_t many = 64 + 32 * all_, too_many = 64 + 256 * all_;
    if (returns_ <= many || (returns_ <= too_many && walk_.clock_.now - start_ <= kPatience)) return;
    Shortage shortage = walk_.room_.shortage(walk_.arena_.round(goal.bytes));
    shortage.in_circles = true;
    throw shortage;
  }

  // There was no room for what should have run. And once more: an op in place may have used up its input, or it has left.
  void rescue() {
    switch (++rescues_) {
      case 1: walk_.room_.pack(); break;
      case 2: walk_.room_.compact(false); break;
      default:
        holding_on_ = !lucky_;  // the first time, it may have held on to the wrong things
        start_anew();
    }
    if (!frames_.empty()) kept_.release_from(frames_.back().kept);
  }

  void start_anew() {
    kept_.release_from(0);
    frames_.clear();
    walk_.room_.compact(true);
    schedule_ = walk_.schedule_fits(goals_);
    lucky_ = !schedule_;
    if (schedule_) return;
    std::vector<Op*> absent;  // more than before: what takes the most room may be another
    walk_.lineage_.missing(goals_, absent);
    walk_.lineage_.find_needs(absent);
  }

  Walk& walk_;
  const std::span<Storage* const> goals_;
  const Seconds start_;
  std::vector<Op*> waiting_;  // ops that run again, or have
  std::size_t all_ = 0;       // that was missing at the beginning
  std::size_t returns_ = 0;   // so far
  std::vector<Frame> frames_;
  Pins kept_;
  bool holding_on_ = true;  // to what was brought back
  bool schedule_ = false;   // takes over
  bool lucky_ = false;
  int rescues_ = 0;  // since something came back
};

}  // namespace coop
