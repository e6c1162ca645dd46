// Transfers: bytes leave for a tier outside the arena and come back, beside the program.
//
// A transfer begins, is under way, and is finished: between two ops, or when somebody has to wait for it. On its way out
// a storage is still resident; ops may read it, but it neither leaves nor moves, and an op that overwrites it cancels
// the transfer or waits. On its way in it has a raw block, which counts like every other. What dies meanwhile leaves its
// block to the transfer.
//
// While one is waited for, the engine's lock is open. The storage is pinned; anything else may have changed afterwards.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "engine/blocks.h"
#include "engine/gate.h"

namespace coop {

// One direction to the tier, as measured.
struct Link {
  double rate;                                         // bytes per second
  Seconds took = kShortest, waited = 0.1 * kShortest;  // by transfers, and for them: the last ones weigh more
  Bytes bytes = 0;                                     // on it now

  Seconds seconds(Bytes more) const { return static_cast<double>(more) / rate; }
  void measure(Bytes done, const Transfer& transfer);
};

class Lineage;

class Transfers {
 public:
  Transfers(const Options& options, Driver& driver, Gate& gate, Clock& clock, Arena& arena, Ledger& ledger,
            Journal& journal, Cost& cost, Forecast& forecast, Blocks& blocks, Checks& checks, Stats& counts);

  // --- one transfer
  void begin_out(Storage& storage);
  // Into a raw block.
  void begin_in(Storage& storage, Block* block);
  // True: nothing is under way for the storage, and nobody else has been in the engine.
  bool wait_for(Storage& storage);
  // Its bytes are not wanted outside any more. False: that has begun already.
  bool cancel(Storage& storage);

  // --- all of them
  bool any() const { return !underway_.empty(); }
  bool ever() const { return ever_.load(std::memory_order_relaxed); }
  // Those that are done.
  void finish_done();
  // Nothing is under way afterwards.
  void finish_all();

  // --- copies
  // Those of these that leave with their bytes are written, and nothing is under way for any of them.
  enum class Written : std::uint8_t {
    yes,
    refused,   // one of them could not be, and has to stay
    disturbed  // others have been in the engine meanwhile: what was chosen may not be there any more
  };
  Written write_back(std::span<Storage* const> leaving, Lineage& lineage);
  void drop_copy(Storage& storage);
  // The copy is the old version's.
  void hand_over(Storage& storage, Storage& old);
  // An op is about to write to these: what is outside is not their bytes any more.
  void overwriting(std::span<Storage* const> written);
  // The storage is being forgotten, and with it its copy. What is on its way in is the transfer's until that is done.
  void forget(Storage& storage);
  // The same for its block, which is being written; false: it is not.
  bool keep_block(Storage& storage);
  // Its bytes are nowhere, and nothing can make them again.
  void set_lost(Storage& storage) { storage.copy.lost = true; }

  // --- prices
  // What the program would wait for: until it has been written, if it were to leave now, and for some of its return.
  void reprice(Storage& storage);
  // What the program notices of its return.
  Seconds cost_of_reading(const Storage& storage);
  // The tier had refused something, and has let something go since: then everything has its price again.
  bool retry_refused();

  const Link& out() const { return out_; }
  const Link& in() const { return in_; }

 private:
  // Without a storage: it died meanwhile, and nobody wants the bytes.
  struct Underway {
    std::uint32_t ticket;
    Storage* storage;
    Block* block;  // raw, unless the storage is on its way out
    Transit direction;
    std::uint32_t page;  // to be dropped at the end
    Bytes bytes;
  };

  Underway& of(const Storage& storage);
  bool wait(std::uint32_t ticket);
  bool finish(Underway& transfer);
  void refused(Storage& storage);

  const Options& options_;
  Driver& driver_;
  Gate& gate_;
  Clock& clock_;
  Arena& arena_;
  Ledger& ledger_;
  Journal& journal_;
  Cost& cost_;
  Forecast& forecast_;
  Blocks& blocks_;
  Checks& checks_;
  Stats& counts_;
  Link out_, in_;
  std::vector<Underway> underway_;
  std::atomic<bool> ever_ = false;               // something has begun
  bool refused_ = false, room_outside_ = false;  // the tier has refused something, and has let something go since
};

}  // namespace coop
