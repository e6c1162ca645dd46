// When each storage is used next, as the last step tells, and what is outside in that order.
//
// A wrong guess costs time and nothing else. Decision 15.
#pragma once

#include <set>
#include <span>
#include <utility>

#include "engine/history.h"
#include "engine/op.h"
#include "engine/options.h"
#include "engine/storage.h"

namespace coop {

class Forecast {
 public:
  Forecast(const Options& options, const Clock& clock) : on_(options.swap && options.foresee), clock_(clock) {}

  // --- what happens
  void born(Storage& storage);
  // An op is about to use these, which may be absent. True for those that had been read ahead.
  void op_begins(std::span<Storage* const> inputs);
  bool used(Storage& storage);
  void op_ended() { logged_ = false; }
  // It leaves for want of room; then it has no block any more.
  void leaves(Storage& storage) {
    storage.outlook.read_ahead = false;
    learn_from_write(storage, storage.copy.page);
    changed_bytes_ += storage.bytes;
  }
  void left(Storage& storage);
  // It has a block again, or its copy is gone.
  void not_outside(Storage& storage) { outside_.erase(&storage); }
  void forgotten(Storage& storage) { history_.forgotten(storage); }
  // It was needed, and had to be asked for.
  void missed(const Storage& storage) { last_missed_ = storage.id; }
  std::uint64_t last_missed() const { return last_missed_; }
  // To make something again, this has been read.
  void read_again(Storage& storage) {
    if (on_) expect_use(storage);
  }

  // --- what is learned
  // It was written ahead; was that worth while?
  void learn_from_write(Storage& storage, bool useful);
  // It came back, and the program waited for a share of the time that it took.
  void learn_from_read(Storage& storage, double late);
  // It had to be written when its room was needed: it would have been worth while before.
  void should_have_been_written(const Storage& storage) {
    if (StepHistory::Lesson* own = history_.lesson(storage)) own->useful = 1;
  }
  double useful(const Storage& storage) {
    const StepHistory::Lesson* own = history_.lesson(storage);
    return own ? own->useful : useful_;
  }
  // What is known of the share of its reading that the program waits for.
  std::optional<double> late(const Storage& storage) {
    const StepHistory::Lesson* own = history_.lesson(storage);
    return own ? own->late : std::nullopt;
  }

  // --- marks of what was done ahead
  void wrote_ahead(Storage& storage, bool on) { storage.outlook.written_ahead = on; }
  void reads_ahead(Storage& storage, bool on) { storage.outlook.read_ahead = on; }

  // --- what comes
  bool known() const { return history_.known(); }
  void expect_use(Storage& storage);
  // Absent, and a copy is outside: in the order in which they are used next, as far as that is known, then by age.
  struct Sooner {
    bool operator()(const Storage* a, const Storage* b) const {
      const Seconds first = a->outlook.due, second = b->outlook.due;
      if (first != second) return second == 0 || (first != 0 && first < second);
      return a->id < b->id;
    }
  };
  const std::set<Storage*, Sooner>& outside() const { return outside_; }
  // Bytes that have come or left, since the last time.
  Bytes changed_bytes() const { return changed_bytes_; }
  void restart_changed_bytes() { changed_bytes_ = 0; }
  // Whether it has changed since the last call: then it has to be looked at again.
  bool take_changed() { return std::exchange(changed_, false); }

 private:
  void expect_need(Storage& storage);
  void set_next_use(Storage& storage, Seconds when, Seconds due);

  const bool on_;
  const Clock& clock_;
  StepHistory history_;
  bool logged_ = false;  // the running op
  std::set<Storage*, Sooner> outside_;
  bool changed_ = false;
  std::uint64_t last_missed_ = 0;  // the storage
  Bytes changed_bytes_ = 0;
  double useful_ = 0.5;  // share of what was written ahead that left before it was overwritten, of late
};

}  // namespace coop
