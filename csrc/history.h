// What comes next, as far as the last time tells: a training step does what the step before it did.
//
// Every op leaves an entry in a log: which storages it used, and which were born with it. A storage has a role, which
// the storage that does the same in the next step takes over: parameters and state keep theirs, being the same storages;
// what is born with an op gets the role of what was born with the op's like in the log. So the place in the log where the
// program was when it last did what it does now, the cursor, says when each storage is used next.
//
// The cursor follows from entry to entry, over a few that are missing. Where it loses its way (another branch, another
// shape), nothing is known until an op uses a known storage the way the log says. A wrong guess costs time and nothing else.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "types.h"

namespace coop {

class History {
 public:
  // An op begins that uses these.
  void used(std::span<Storage* const> storages, Seconds now);
  // A storage came to be, with the op that began last or after it.
  void born(Storage& storage);
  // The op that began last needs this as well: to recompute what it uses.
  void needed(Storage& storage);
  void forgotten(Storage& storage);

  // Whether it is known what comes next.
  bool known() const { return cursor_ != kNone; }
  // Whether it was of use to write it ahead the last times, between 0 and 1; null: it has no role.
  double* useful(const Storage& storage) { return storage.role ? &roles_[storage.role].useful : nullptr; }
  // From now on, how long the storage will not be used; 0: that is not known.
  Seconds idle(const Storage& storage);

 private:
  using Index = std::uint64_t;
  static constexpr Index kNone = UINT64_MAX;

  struct Entry {
    Seconds at;
    Index first_use, first_birth;
    std::uint32_t inputs;  // uses that are the op's own: the first ones
  };
  struct Use {
    std::uint32_t role;
    Index entry;
    Index next = kNone;  // use of the same role
  };
  struct Role {
    Storage* storage = nullptr;
    Bytes bytes = 0;
    Index first = kNone, last = kNone;  // of its uses
    Index next = kNone;                 // the first that may be still to come, seen from where
    std::uint32_t era = 0;              // the cursor was set at this time
    std::uint32_t references = 0;       // in the log
    bool settled = false;               // it has been the same before
    double useful = 0.5;
  };

  // Numbered from the beginning of time; the oldest are gone.
  template <typename Item>
  struct Log {
    std::deque<Item> items;
    Index base = 0;
    Item& operator[](Index index) { return items[index - base]; }
    Index end() const { return base + items.size(); }
  };

  std::uint32_t new_role(Storage& storage);
  void take_role(Storage& storage, std::uint32_t role);
  void release(std::uint32_t role);
  void add_use(std::uint32_t role);
  void find(std::span<Storage* const> storages);
  bool matches(Index entry, std::span<Storage* const> storages, bool surely);
  Index next_use(Role& role);
  void trim();

  Log<Entry> entries_;
  Log<Use> uses_;
  Log<std::uint32_t> births_;
  std::vector<Role> roles_{1};  // role 0 stands for "none"
  std::vector<std::uint32_t> spare_;
  Index cursor_ = kNone;
  std::size_t followed_ = 0;  // entries, since it was set
  std::uint32_t era_ = 0;     // how often it was
};

}  // namespace coop
