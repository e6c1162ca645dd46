// What the engine asks of whoever runs the program: the torch scope, the trace player, a test.
#pragma once

#include "engine/op.h"
#include "engine/storage.h"

namespace coop {

// How a transfer went.
struct Transfer {
  bool done = false;       // if not, the rest says nothing
  std::uint32_t page = 0;  // that was written, or read; 0: it could not be, or is not what it was
  Seconds seconds = 0;     // it took
  Seconds waited = 0;      // for it, by the program
};

// Calls come under the engine's lock, but for replay and wait.
class Driver {
 public:
  virtual ~Driver() = default;
  // Runs the op again and returns what it cost. Inputs are resident and locked. Each output's raw block goes to
  // `produced`, null where it has none. An in-place op works on `target`, which holds the bytes of its first input.
  virtual Seconds replay(Op& op, Block* target, Block** produced) = 0;
  // The bytes of a held storage are about to leave.
  virtual void detach(Storage& storage) = 0;
  // The bytes of a held storage are at its block's offset from now on.
  virtual void attach(Storage& storage) = 0;
  // Copies inside the arena, and returns the time it took; the ranges may overlap.
  virtual Seconds copy(Bytes to, Bytes from, Bytes bytes) = 0;
  // A record or a storage is gone: release what belongs to it.
  virtual void drop(Op& op) = 0;
  virtual void drop(Storage& storage) = 0;
  // Moves the bytes of a held storage out of the arena, for good. False: another thread is letting go of it.
  virtual bool evacuate(Storage& storage) = 0;
  // A held storage will never be brought back: reading it is an error from now on.
  virtual void abandon(Storage& storage) = 0;

  // --- a tier outside the arena, if there is one
  // Begins to write bytes of the arena, or to bring a page back, beside the program. Returns a ticket, from 1 on; 0:
  // there is no tier.
  virtual std::uint32_t begin_out(Bytes /*offset*/, Bytes /*bytes*/, Seconds /*now*/) { return 0; }
  virtual std::uint32_t begin_in(std::uint32_t /*page*/, Bytes /*offset*/, Bytes /*bytes*/, Seconds /*now*/) {
    return 0;
  }
  // Returns when the transfer is done. The engine's lock is open: others go on meanwhile.
  virtual void wait(std::uint32_t /*ticket*/, Seconds /*now*/) {}
  // How it went, once: if it is done.
  virtual Transfer finish(std::uint32_t /*ticket*/, Seconds /*now*/) { return {}; }
  // True: it had not begun, and will not.
  virtual bool cancel(std::uint32_t /*ticket*/) { return false; }
  virtual void drop_page(std::uint32_t /*page*/) {}

  // --- for checks
  // A digest of bytes in the arena: rule 4.
  virtual std::uint64_t digest(Bytes offset, Bytes bytes) = 0;
  // Nobody may read these bytes of the arena any more: at the highest level of checks they are overwritten.
  virtual void spoil(Bytes /*offset*/, Bytes /*bytes*/) {}
};

}  // namespace coop
