// What comes next, as far as the last time tells: a training step does what the step before it did.
//
// Every op leaves an entry in a log: which storages it used, and which were born with it. A storage's life in the log is the
// list of its uses. The cursor is the place in the log where the program was when it last did what it does now. A storage
// that was there already, a parameter, will be used as it was used after the cursor. One that is born now is like the one
// that was born at the cursor, and will be used as that was.
//
// The cursor follows from entry to entry, over a few that are missing. Where it loses its way (another branch, another
// shape), nothing is known until an op uses a known storage the way the log says. A wrong guess costs time and nothing else.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "engine/storage.h"

namespace coop {

class StepHistory {
 public:
  // An op begins that uses these.
  void used(std::span<Storage* const> storages, Seconds now);
  // A storage came to be, with the op that began last or after it.
  void born(Storage& storage);
  void forgotten(Storage& storage);

  // Whether it is known what comes next.
  bool known() const { return cursor_ != kNone; }
  // Storages that it knows of, dead ones too.
  std::size_t lives() const { return lives_.size() - 1 - spare_.size(); }
  // What the last times have taught of a storage, and of those that it is like.
  struct Lesson {
    double useful = 0.5;         // it was, to write it ahead: between 0 and 1
    std::optional<double> late;  // share of the time of reading it back that the program waited
  };
  // Null: it is in no log.
  Lesson* lesson(const Storage& storage) {
    return storage.outlook.life ? &lives_[storage.outlook.life].lesson : nullptr;
  }
  // From now on, how long the storage will not be used; 0: that is not known. And whether it is known to be used then.
  struct Next {
    Seconds idle = 0;
    bool used = false;
  };
  Next next(const Storage& storage);

 private:
  using Index = std::uint64_t;
  static constexpr Index kNone = UINT64_MAX;

  struct Entry {
    Seconds at;
    Index first_use, first_birth;
    std::uint32_t inputs;
  };
  struct Use {
    std::uint32_t life;
    Index entry;
    Index next = kNone;  // use of the same life
  };
  struct Life {
    Storage* storage = nullptr;  // null: it has ended
    Bytes bytes = 0;
    Index birth = 0;                    // its entry; 0: before there was a log
    std::uint32_t like = 0;             // the life that it repeats; 0: not known
    std::uint32_t references = 0;       // in the log, and from lives that repeat it
    Index first = kNone, last = kNone;  // of its uses
    Index next = kNone;                 // the first that may be still to come, seen from where
    std::uint32_t era = 0;              // the cursor was set at this time
    Lesson lesson{};
  };

  // Numbered from the beginning of time; the oldest are gone.
  template <typename Item>
  struct Log {
    std::deque<Item> items;
    Index base = 0;
    Item& operator[](Index index) { return items[index - base]; }
    Index end() const { return base + items.size(); }
  };

  std::uint32_t life_of(Storage& storage, Index birth);
  void set_like(Life& life, std::uint32_t like);
  void release(std::uint32_t life);
  void add_use(std::uint32_t life);
  void find(std::span<Storage* const> storages);
  bool matches(Index entry, std::span<Storage* const> storages, bool surely);
  Index next_use(Life& life);
  void trim();

  Log<Entry> entries_;
  Log<Use> uses_;
  Log<std::uint32_t> births_;
  std::vector<Life> lives_{1};  // number 0 stands for "none"
  std::vector<std::uint32_t> spare_;
  Index cursor_ = kNone;
  std::size_t followed_ = 0;  // entries, since it was set
  std::uint32_t era_ = 0;     // how often it was
};

}  // namespace coop
