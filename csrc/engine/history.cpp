// Finding the place in the log that the program repeats.
#include "engine/history.h"

#include <algorithm>
#include <utility>

namespace coop {

namespace {
constexpr std::size_t kMost = 1 << 18;   // entries in the log: a longer step is not recognised
constexpr std::size_t kLeast = 1 << 13;  // entries always kept: a loop inside a step may look like one
constexpr std::uint64_t kSkip = 4;       // how far the cursor may advance at once: ops may be left out
constexpr int kTries = 16;               // entries that are compared for one storage
}  // namespace

// --- lives -------------------------------------------------------------------------------------------------------------

std::uint32_t StepHistory::life_of(Storage& storage, Index birth) {
  if (storage.outlook.life) return storage.outlook.life;
  if (unused_.empty()) {
    storage.outlook.life = static_cast<std::uint32_t>(lives_.size());
    lives_.emplace_back();
  } else {
    storage.outlook.life = unused_.back();
    unused_.pop_back();
  }
  lives_[storage.outlook.life] = {.storage = &storage, .bytes = storage.bytes, .birth = birth};
  return storage.outlook.life;
}

void StepHistory::set_like(Life& life, std::uint32_t like) {
  if (like) {
    ++lives_[like].references;
    life.lesson = lives_[like].lesson;
  }
  if (const std::uint32_t before = std::exchange(life.like, like)) release(before);
}

void StepHistory::forgotten(Storage& storage) {
  const std::uint32_t number = std::exchange(storage.outlook.life, 0);
  if (!number) return;
  set_like(lives_[number], 0);
  lives_[number].storage = nullptr;
  if (!lives_[number].references) unused_.push_back(number);
}

void StepHistory::release(std::uint32_t number) {
  Life& life = lives_[number];
  if (--life.references == 0 && !life.storage) unused_.push_back(number);
}

void StepHistory::add_use(std::uint32_t number) {
  Life& life = lives_[number];
  const Index use = uses_.end();
  (life.last == kNone ? life.first : uses_[life.last].next) = use;
  if (life.next == kNone) life.next = use;
  life.last = use;
  ++life.references;
  uses_.items.push_back({number, entries_.end() - 1});
}

// --- the log -----------------------------------------------------------------------------------------------------------

void StepHistory::used(std::span<Storage* const> storages, Seconds now) {
  for (Storage* storage : storages) life_of(*storage, 0);
  find(storages);
  entries_.items.push_back({now, uses_.end(), births_.end(), static_cast<std::uint32_t>(storages.size())});
  for (const Storage* storage : storages) add_use(storage->outlook.life);
  trim();
}

void StepHistory::born(Storage& storage) {
  if (entries_.items.empty()) return;
  const std::uint32_t number = life_of(storage, entries_.end() - 1);
  const Index place = births_.end() - entries_.items.back().first_birth;
  if (known() && entries_[cursor_].first_birth + place < entries_[cursor_ + 1].first_birth) {
    const std::uint32_t like = births_[entries_[cursor_].first_birth + place];
    if (lives_[like].bytes == storage.bytes) set_like(lives_[number], like);
  }
  ++lives_[number].references;
  births_.items.push_back(number);
}

// Moves the cursor to the entry that this op repeats: one just behind the cursor, or else the
// oldest that uses one of these storages.
void StepHistory::find(std::span<Storage* const> storages) {
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
    Index use = lives_[storage->outlook.life].first;
    for (int tries = 0; tries < kTries && use != kNone; ++tries, use = uses_[use].next) {
      if (!matches(uses_[use].entry, storages, true)) continue;
      cursor_ = uses_[use].entry;
      followed_ = 0;
      ++era_;
      return;
    }
  }
}

// Whether the op may repeat this entry: each storage is the one that the entry names, or repeats
// it; or has the same size, if the named one is gone. `surely`: at least one must be the named one
// or repeat it.
bool StepHistory::matches(Index entry, std::span<Storage* const> storages, bool surely) {
  const Entry& at = entries_[entry];
  if (at.inputs != storages.size()) return false;
  const auto named = [&](std::size_t i) { return uses_[at.first_use + i].life; };
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const Life& own = lives_[storages[i]->outlook.life];
    const Life& there = lives_[named(i)];
    if (storages[i]->outlook.life == named(i) || own.like == named(i)) {
      surely = false;
    } else if (there.storage || there.bytes != own.bytes) {
      return false;
    }
  }
  if (surely) return false;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    Life& own = lives_[storages[i]->outlook.life];
    if (storages[i]->outlook.life != named(i) && own.like != named(i)) set_like(own, named(i));
  }
  return true;
}

// --- what comes --------------------------------------------------------------------------------------------------------

// The life's first use behind the cursor.
StepHistory::Index StepHistory::next_use(Life& life) {
  if (life.era != era_) {
    life.era = era_;
    life.next = life.first;
  }
  while (life.next != kNone && uses_[life.next].entry <= cursor_) life.next = uses_[life.next].next;
  return life.next;
}

StepHistory::Next StepHistory::next(const Storage& storage) {
  if (!known() || !storage.outlook.life) return {};
  Life& own = lives_[storage.outlook.life];
  const bool was_there = own.birth <= cursor_;
  if (!was_there && !own.like) return {};
  const Index use = next_use(was_there ? own : lives_[own.like]);
  const Seconds then = use == kNone ? entries_.items.back().at : entries_[uses_[use].entry].at;
  return {std::max(then - entries_[cursor_].at, kShortest), use != kNone};
}

// Removes entries before the cursor, once the cursor has followed a whole step, and entries beyond
// kMost.
void StepHistory::trim() {
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
      Life& life = lives_[use.life];
      if (life.next == life.first) life.next = use.next;
      life.first = use.next;
      if (life.last == uses_.base) life.last = kNone;
      release(use.life);
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
