// What the program will do next, judging by what it did before: a training step repeats the
// previous one.
//
// Every op adds an entry to a log: which storages it used, and which were born with it. A storage's
// life is the list of its uses in the log. The cursor points to the entry where the program last
// did what it does now. A storage that already existed then, such as a parameter, is expected to be
// used as it was used after the cursor. A storage that is born now is expected to be used like the
// one that was born at the cursor.
//
// The cursor moves from entry to entry and may skip a few. When it no longer matches (another
// branch, another shape), nothing is known until an op uses a known storage as the log says. A
// wrong guess costs time and nothing else.
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
  // An op that uses these begins.
  void used(std::span<Storage* const> storages, Seconds now);
  // A storage was made by the op that began last, or after it.
  void born(Storage& storage);
  void forgotten(Storage& storage);

  // Whether the cursor is set.
  bool known() const { return cursor_ != kNone; }
  // Storages in the log, dead ones too.
  std::size_t lives() const { return lives_.size() - 1 - unused_.size(); }
  // What was learned about a storage and its predecessors in earlier steps.
  struct Lesson {
    double useful = 0.5;         // how often writing it ahead paid: between 0 and 1
    std::optional<double> late;  // share of its reading time that the program waited for
  };
  // Null: the storage is not in the log.
  Lesson* lesson(const Storage& storage) {
    return storage.outlook.life ? &lives_[storage.outlook.life].lesson : nullptr;
  }
  // `idle`: how long the storage will not be used from now on; 0: not known. `used`: it is known to
  // be used then.
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
    Index next = kNone;  // next use of the same life
  };
  struct Life {
    Storage* storage = nullptr;  // null: the storage is gone
    Bytes bytes = 0;
    Index birth = 0;                    // the entry in which it was born; 0: before the log began
    std::uint32_t like = 0;             // the earlier life that it repeats; 0: not known
    std::uint32_t references = 0;       // from the log, and from lives that repeat this one
    Index first = kNone, last = kNone;  // its uses
    Index next = kNone;                 // cached: its first use that may lie behind the cursor
    std::uint32_t era = 0;              // `next` is valid while this equals era_
    Lesson lesson{};
  };

  // A queue whose items keep their numbers when the oldest are removed.
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
  std::vector<std::uint32_t> unused_;
  Index cursor_ = kNone;
  std::size_t followed_ = 0;  // entries that the cursor has followed since it was set
  std::uint32_t era_ = 0;     // how often the cursor was set
};

}  // namespace coop
