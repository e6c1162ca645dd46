// Transfers: bytes are written to a tier outside the arena and read back, beside the program.
//
// A transfer begins, is under way, and is finished: between two ops, or when a thread has to wait
// for it. On its way out a storage is still resident. Ops may read it, but it neither leaves nor
// moves; an op that overwrites it cancels the transfer or waits. On its way in it has a raw block,
// which counts like any other. If a storage dies meanwhile, the transfer keeps the block until it
// is done.
//
// While a thread waits for a transfer, the engine's lock is open. The storage is pinned; anything
// else may have changed afterwards.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "engine/blocks.h"
#include "engine/gate.h"

namespace coop {

// One direction of the link to the tier, as measured.
struct Link {
  double rate;                                         // bytes per second
  Seconds took = kShortest, waited = 0.1 * kShortest;  // by transfers, and for them; both decay
  Bytes bytes = 0;                                     // of transfers under way

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
  // Waits until nothing is under way for the storage. True: no other thread has been in the engine
  // meanwhile.
  bool wait_for(Storage& storage);
  // Cancels a transfer out. False: there is none, or it has begun.
  bool cancel(Storage& storage);

  // --- all of them
  bool any() const { return !underway_.empty(); }
  bool ever() const { return ever_.load(std::memory_order_relaxed); }
  // Finishes the transfers that are done.
  void finish_done();
  // Waits for all of them.
  void finish_all();

  // --- copies
  // Writes those of these storages that leave with their bytes, and waits until nothing is under
  // way for any of them.
  enum class Written : std::uint8_t {
    yes,
    refused,   // one could not be written and has to stay
    disturbed  // another thread has been in the engine: the choice may be out of date
  };
  Written write_back(std::span<Storage* const> leaving, Lineage& lineage);
  void drop_copy(Storage& storage);
  // The copy belongs to the old version from now on.
  void hand_over(Storage& storage, Storage& old);
  // An op is about to write to these: their copies are no longer valid.
  void overwriting(std::span<Storage* const> written);
  // The storage is being forgotten, and its copy with it. If it is on its way in, the transfer owns
  // page and block until it is done.
  void forget(Storage& storage);
  // The storage is being forgotten. True: its block is being written, so the transfer owns it until
  // it is done.
  bool keep_block(Storage& storage);
  // Its bytes are gone, and it cannot be recomputed.
  void set_lost(Storage& storage) { storage.copy.lost = true; }

  // --- prices
  // Sets the cost of swapping the storage: the time that the program would wait if it left now, to
  // write it and for part of its return.
  void reprice(Storage& storage);
  // The part of its reading time that the program loses.
  Seconds cost_of_reading(const Storage& storage);
  // If the tier has refused something, and has dropped a page since, all storages get a price
  // again. True: that was so.
  bool retry_refused();

  const Link& out() const { return out_; }
  const Link& in() const { return in_; }

 private:
  // `storage` is null if it died meanwhile: nobody needs the bytes.
  struct Underway {
    std::uint32_t ticket;
    Storage* storage;
    Block* block;  // raw, unless the storage is on its way out
    Transit direction;
    std::uint32_t page;  // to be dropped when the transfer is done; 0: none
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
  std::atomic<bool> ever_ = false;               // a transfer has begun at some time
  bool refused_ = false, room_outside_ = false;  // the tier refused something; dropped a page since
};

}  // namespace coop
