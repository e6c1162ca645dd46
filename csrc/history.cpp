// Where the program is in what it did before.
#include "history.h"

#include <algorithm>

namespace coop {

namespace {
constexpr std::size_t kMost = 1 << 18;   // entries in the log: a step that is longer than this is not recognised
constexpr std::size_t kLeast = 1 << 13;  // that are kept in any case: a loop inside a step may look like a step
constexpr std::uint64_t kSkip = 4;       // entries that may be missing this time
constexpr int kTries = 16;               // places in the log that are looked at for one storage
}  // namespace

std::uint32_t History::new_role(Storage& storage) {
  std::uint32_t number = 0;
  if (spare_.empty()) {
    number = static_cast<std::uint32_t>(roles_.size());
    roles_.emplace_back();
  } else {
    number = spare_.back();
    spare_.pop_back();
  }
  roles_[number] = {.storage = &storage, .bytes = storage.bytes};
  return storage.role = number;
}

// Whoever had it goes on without.
void History::take_role(Storage& storage, std::uint32_t number) {
  forgotten(storage);
  Role& role = roles_[number];
  if (role.storage) role.storage->role = 0;
  role.storage = &storage;
  role.settled = true;
  storage.role = number;
}

void History::forgotten(Storage& storage) {
  if (!storage.role) return;
  Role& role = roles_[storage.role];
  role.storage = nullptr;
  if (!role.references) spare_.push_back(storage.role);
  storage.role = 0;
}

void History::release(std::uint32_t number) {
  Role& role = roles_[number];
  if (--role.references == 0 && !role.storage) spare_.push_back(number);
}

void History::add_use(std::uint32_t number) {
  Role& role = roles_[number];
  const Index use = uses_.end();
  (role.last == kNone ? role.first : uses_[role.last].next) = use;
  if (role.next == kNone) role.next = use;
  role.last = use;
  ++role.references;
  uses_.items.push_back({number, entries_.end() - 1});
}

void History::used(std::span<Storage* const> storages, Seconds now) {
  find(storages);
  entries_.items.push_back({now, uses_.end(), births_.end(), static_cast<std::uint32_t>(storages.size())});
  for (Storage* storage : storages) add_use(storage->role ? storage->role : new_role(*storage));
  trim();
}

void History::needed(Storage& storage) {
  if (!entries_.items.empty()) add_use(storage.role ? storage.role : new_role(storage));
}

void History::born(Storage& storage) {
  if (entries_.items.empty()) return;
  const Index born = births_.end() - entries_.items.back().first_birth;
  Index like = kNone;
  if (known()) {
    like = entries_[cursor_].first_birth + born;
    if (like >= entries_[cursor_ + 1].first_birth) like = kNone;
  }
  if (like != kNone && roles_[births_[like]].bytes == storage.bytes) {
    take_role(storage, births_[like]);
  } else {
    new_role(storage);
  }
  ++roles_[storage.role].references;
  births_.items.push_back(storage.role);
}

// Moves the cursor to the entry that this op is like: the one behind the last, or the oldest that uses one of these.
void History::find(std::span<Storage* const> storages) {
  if (known()) {
    for (Index skip = 1; skip <= kSkip && cursor_ + skip < entries_.end(); ++skip) {
      if (!matches(cursor_ + skip, storages, skip > 1)) continue;
      cursor_ += skip;
      ++followed_;
      return;
    }
  }
  cursor_ = kNone;
  for (const Storage* storage : storages) {
    Index use = storage->role ? roles_[storage->role].first : kNone;
    for (int tries = 0; tries < kTries && use != kNone; ++tries, use = uses_[use].next) {
      if (!matches(uses_[use].entry, storages, true)) continue;
      cursor_ = uses_[use].entry;
      followed_ = 0;
      ++era_;
      return;
    }
  }
}

// Storages of which nobody has the role that the entry names take it. `surely`: one at least has to have its own.
bool History::matches(Index entry, std::span<Storage* const> storages, bool surely) {
  const Entry& at = entries_[entry];
  if (at.inputs != storages.size()) return false;
  const auto role_in_log = [&](std::size_t i) { return uses_[at.first_use + i].role; };
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const Role& there = roles_[role_in_log(i)];
    if (there.storage == storages[i]) {
      surely = false;
    } else if (there.storage || there.bytes != storages[i]->bytes) {
      return false;
    }
  }
  if (surely) return false;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    if (storages[i]->role != role_in_log(i)) take_role(*storages[i], role_in_log(i));
    roles_[role_in_log(i)].settled = true;
  }
  return true;
}

// The first behind the cursor.
History::Index History::next_use(Role& role) {
  if (role.era != era_) {
    role.era = era_;
    role.next = role.first;
  }
  while (role.next != kNone && uses_[role.next].entry <= cursor_) role.next = uses_[role.next].next;
  return role.next;
}

Seconds History::idle(const Storage& storage) {
  if (!known() || !storage.role) return 0;
  Role& role = roles_[storage.role];
  const Index use = next_use(role);
  if (use == kNone && !role.settled) return 0;
  const Seconds then = use == kNone ? entries_.items.back().at : entries_[uses_[use].entry].at;
  return std::max(then - entries_[cursor_].at, kShortest);
}

// What lies before the cursor is not needed any more, if that is where the program is.
void History::trim() {
  const auto enough = [&] {
    const std::size_t size = entries_.items.size();
    const bool sure = known() && entries_.base < cursor_ && followed_ > entries_.end() - cursor_;
    return size <= kLeast || (size <= kMost && !sure);
  };
  while (!enough()) {
    entries_.items.pop_front();
    ++entries_.base;
    for (; uses_.base < entries_.items.front().first_use; ++uses_.base) {
      const Use& use = uses_.items.front();
      Role& role = roles_[use.role];
      if (role.next == role.first) role.next = use.next;
      role.first = use.next;
      if (role.last == uses_.base) role.last = kNone;
      release(use.role);
      uses_.items.pop_front();
    }
    for (; births_.base < entries_.items.front().first_birth; ++births_.base) {
      release(births_.items.front());
      births_.items.pop_front();
    }
  }
  if (known() && cursor_ < entries_.base) cursor_ = kNone;
}

}  // namespace coop
