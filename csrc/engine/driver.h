// What the engine asks of its driver, which runs the program: the torch scope, the trace player, a
// test.
#pragma once

#include "engine/op.h"
#include "engine/storage.h"

namespace coop {

// The result of a transfer.
struct Transfer {
  bool done = false;       // if false, the other fields mean nothing
  std::uint32_t page = 0;  // the page written or read; 0: that failed, or the bytes have changed
  Seconds seconds = 0;     // that the transfer took
  Seconds waited = 0;      // time that the program waited for it
};

// All calls are made under the engine's lock, except replay and wait.
class Driver {
 public:
  virtual ~Driver() = default;
  // Runs the op again and returns its cost. Inputs are resident and locked. `produced` receives the
  // raw block of each output, null where there is none. An in-place op works on `target`, which
  // holds the bytes of its first input.
  virtual Seconds replay(Op& op, Block* target, Block** produced) = 0;
  // The bytes of a held storage are about to leave.
  virtual void detach(Storage& storage) = 0;
  // The bytes of a held storage are at its block's offset from now on.
  virtual void attach(Storage& storage) = 0;
  // Copies bytes inside the arena and returns the time it took. The ranges may overlap.
  virtual Seconds copy(Bytes to, Bytes from, Bytes bytes) = 0;
  // A record or a storage is gone: release what belongs to it.
  virtual void drop(Op& op) = 0;
  virtual void drop(Storage& storage) = 0;
  // Moves the bytes of a held storage out of the arena for good. False: another thread is just
  // dropping it.
  virtual bool evacuate(Storage& storage) = 0;
  // A held storage will never be brought back: reading it is an error from now on.
  virtual void abandon(Storage& storage) = 0;

  // --- the tier, if there is one
  // Begins to write bytes of the arena to the tier, or to read a page back, beside the program.
  // Returns a ticket, from 1 on; 0: there is no tier.
  virtual std::uint32_t begin_out(Bytes /*offset*/, Bytes /*bytes*/, Seconds /*now*/) { return 0; }
  virtual std::uint32_t begin_in(std::uint32_t /*page*/, Bytes /*offset*/, Bytes /*bytes*/, Seconds /*now*/) {
    return 0;
  }
  // Returns when the transfer is done. The engine's lock is open: other threads go on meanwhile.
  virtual void wait(std::uint32_t /*ticket*/, Seconds /*now*/) {}
  // The result, if the transfer is done. The ticket is then no longer valid.
  virtual Transfer finish(std::uint32_t /*ticket*/, Seconds /*now*/) { return {}; }
  // True: the transfer had not begun, and will not.
  virtual bool cancel(std::uint32_t /*ticket*/) { return false; }
  virtual void drop_page(std::uint32_t /*page*/) {}

  // --- for checks
  // A digest of bytes in the arena, to check rule 4.
  virtual std::uint64_t digest(Bytes offset, Bytes bytes) = 0;
  // Nobody may read these bytes any more. Called at check level 3: they are overwritten.
  virtual void spoil(Bytes /*offset*/, Bytes /*bytes*/) {}
};

}  // namespace coop
