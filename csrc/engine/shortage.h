// What the engine throws.
#pragma once

#include <exception>
#include <stdexcept>

#include "engine/types.h"

namespace coop {

// A storage that was swapped out did not come back and cannot be recomputed. The program can go on
// without it.
struct Lost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// No room. The program can go on after catching it (rule 8).
struct Shortage : std::exception {
  Bytes needed = 0;   // in one piece
  Bytes largest = 0;  // the largest piece that could be freed
  Bytes budget = 0;
  Bytes locked = 0;   // operands of the running op
  Bytes scratch = 0;  // raw blocks: unfinished outputs and kernels' scratch
  Bytes pinned = 0;   // by the user, or waiting for a recomputation
  Bytes sources = 0;  // cannot be recomputed
  Bytes exposed = 0;  // a pointer to them is known outside
  Bytes enough = 0;   // a budget that would have been enough
  Bytes kept = 0;     // sources that are resident now
  Bytes working = 0;  // the most that one op has needed so far besides sources
  Bytes read = 0;     // bytes of all operands of the op
  std::size_t operands = 0;
  bool swaps = false;       // swapping is on: sources may leave
  bool whole = false;       // `enough` covers the whole op; else only the part that has run
  bool in_circles = false;  // each storage fits in turn, but not those needed together
  const char* what() const noexcept override { return "no room in the arena"; }
};

}  // namespace coop
