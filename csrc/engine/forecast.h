// When each storage is used next, judging by the last step; and the swapped storages, in the order
// of their next use.
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
  // An op is about to use these, which may be absent. Then `used` is called for each; it returns
  // whether it had been read ahead.
  void op_begins(std::span<Storage* const> inputs);
  bool used(Storage& storage);
  void op_ended() { logged_ = false; }
  // The storage is about to leave to make room; and it has no block any more.
  void leaves(Storage& storage) {
    storage.outlook.read_ahead = false;
    learn_from_write(storage, storage.copy.page);
    changed_bytes_ += storage.bytes;
  }
  void became_absent(Storage& storage);
  // The storage is resident again, or has lost its copy.
  void not_outside(Storage& storage) { outside_.erase(&storage); }
  void forgotten(Storage& storage) { history_.forgotten(storage); }
  // An op needed the storage before it had been read ahead.
  void missed(const Storage& storage) { last_missed_ = storage.id; }
  std::uint64_t last_missed() const { return last_missed_; }
  // The storage was an input of a replay.
  void read_again(Storage& storage) {
    if (on_) expect_use(storage);
  }

  // --- what is learned
  // `useful`: the storage had been written ahead, and did leave. No effect if it had not been
  // written ahead.
  void learn_from_write(Storage& storage, bool useful);
  // It has been read back; `late`: the share of that time during which the program waited.
  void learn_from_read(Storage& storage, double late);
  // It was written only when its room was needed: writing it ahead would have paid.
  void should_have_been_written(const Storage& storage) {
    if (StepHistory::Lesson* own = history_.lesson(storage)) own->useful = 1;
  }
  double useful(const Storage& storage) {
    const StepHistory::Lesson* own = history_.lesson(storage);
    return own ? own->useful : useful_;
  }
  // The share of its reading time that the program waits for, as far as known.
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
  // The swapped storages, in the order of their next use where that is known, then by age.
  struct Sooner {
    bool operator()(const Storage* a, const Storage* b) const {
      const Seconds first = a->outlook.due, second = b->outlook.due;
      if (first != second) return second == 0 || (first != 0 && first < second);
      return a->id < b->id;
    }
  };
  const std::set<Storage*, Sooner>& outside() const { return outside_; }
  // Bytes of storages that were made or left since the last restart.
  Bytes changed_bytes() const { return changed_bytes_; }
  void restart_changed_bytes() { changed_bytes_ = 0; }
  // Whether `outside` has changed since the last call.
  bool take_changed() { return std::exchange(changed_, false); }

 private:
  void expect_need(Storage& storage);
  void set_next_use(Storage& storage, Seconds when, Seconds due);

  const bool on_;
  const Clock& clock_;
  StepHistory history_;
  bool logged_ = false;  // the running op is in the history
  std::set<Storage*, Sooner> outside_;
  bool changed_ = false;
  std::uint64_t last_missed_ = 0;  // its id
  Bytes changed_bytes_ = 0;
  double useful_ = 0.5;  // recent share of the storages written ahead that did leave
};

}  // namespace coop
