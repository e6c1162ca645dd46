// Counts bytes by what they are used for, and keeps the peak and the floor. No other class counts
// them.
//
// A resident storage counts as a source, or as cached if it can be recomputed and nobody holds it.
// Code that changes what a storage counts as does so inside a Change: the storage is subtracted
// before and added after, by one definition.
#pragma once

#include <algorithm>
#include <utility>

#include "engine/arena.h"
#include "engine/options.h"
#include "engine/storage.h"

namespace coop {

class Ledger {
 public:
  Ledger(const Options& options, const Arena& arena) : swap_(options.swap), arena_(arena) {}

  // A scope in which a storage changes what it counts as.
  class Change {
   public:
    Change(Ledger& ledger, const Storage& storage) : ledger_(ledger), storage_(storage) {
      ledger_.begin_change(storage_);
    }
    ~Change() { ledger_.end_change(storage_); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    Ledger& ledger_;
    const Storage& storage_;
  };
  // The same in two calls, for several storages.
  void begin_change(const Storage& storage) { add(storage, -1); }
  void end_change(const Storage& storage) { add(storage, 1); }

  // The running op reads or writes the storage: it is not moved. If it could leave otherwise, its
  // bytes count as part of the op's need.
  void lock(Storage& storage) {
    const bool can_leave = storage.producer || swap_;
    if (storage.claims.locks++ == 0 && can_leave && !storage.foreign) {
      storage.claims.charged = true;
      operands_ += storage.bytes;
    }
  }
  void unlock(Storage& storage) {
    if (--storage.claims.locks == 0) discharge(storage);
  }
  // A locked storage has become a source.
  void became_source(Storage& storage) {
    if (!swap_) discharge(storage);
  }

  // Raw bytes of transfers. They count as no op's need.
  void carry(Bytes bytes) { carried_ += bytes; }
  void carried(Bytes bytes) { carried_ -= bytes; }
  Bytes carried() const { return carried_; }

  // Updates peak and floor. To be called when more bytes may be in use than before.
  void count() {
    if (overdrawn_) [[unlikely]]
      return count_overdraft();
    peak_ = std::max(peak_, in_use());
    const Bytes working = operands_ + arena_.raw_bytes() - carried_;
    working_ = std::max(working_, working);
    floor_ = std::max(floor_, (swap_ ? 0 : sources_) + working);
  }

  // While an op that has failed is measured beyond the budget, only the highest byte in use is
  // counted.
  void overdraw(bool on) {
    overdrawn_ = on;
    top_ = 0;
  }
  bool overdrawn() const { return overdrawn_; }
  void restart_top() { top_ = 0; }
  Bytes top() const { return top_; }

  Bytes in_use() const { return arena_.capacity() - arena_.free_bytes() - cached_; }
  Bytes cached() const { return cached_; }
  Bytes sources() const { return sources_; }
  Bytes peak() const { return peak_; }
  Bytes floor() const { return floor_; }
  Bytes working() const { return working_; }  // the most that one op has needed besides sources

  // Throws std::logic_error if the counts are not what a walk over the arena finds.
  void check() const;

 private:
  void add(const Storage& storage, int sign) {
    if (!storage.block) return;
    if (storage.source()) {
      sources_ += static_cast<Bytes>(sign) * storage.bytes;
    } else if (!storage.held) {
      cached_ += static_cast<Bytes>(sign) * storage.block->bytes;
    }
  }
  void discharge(Storage& storage) {
    if (std::exchange(storage.claims.charged, false)) operands_ -= storage.bytes;
  }
  void count_overdraft();

  const bool swap_;
  const Arena& arena_;
  Bytes sources_ = 0;   // resident
  Bytes cached_ = 0;    // blocks of recomputable storages that nobody holds
  Bytes operands_ = 0;  // locked storages that could leave otherwise
  Bytes carried_ = 0;
  Bytes peak_ = 0, floor_ = 0, working_ = 0;
  bool overdrawn_ = false;
  Bytes top_ = 0;
};

}  // namespace coop
