// The words of the engine, and the numbered rules.
//
// The engine knows no tensor library. It keeps the lineage (which op made which storage from which) and the arena
// (which storage lies where), and asks its driver for a few things: run this op again, the bytes of this storage are
// gone or here, copy these bytes, this record is no longer needed.
//
// Rules that always hold. Code and tests refer to them by number.
//   1. Bytes in use never exceed the budget. The arena never grows.
//   2. A storage is in one state: resident, swapped, evicted or dead. What is evicted can be made again; of what is
//      swapped, a copy is outside.
//   3. What is pinned does not leave. An op's inputs and outputs are pinned while it runs, replays included.
//   4. What was evicted comes back bit for bit.
//   5. Before a source is overwritten, everything alive that would need its old value is resident and committed.
//   6. A replay has no side effects: random state, statistics and mutated arguments are as if it never happened.
//   7. Victims of one request lie side by side with the free blocks between them, and the request lands there
//      (policy coop).
//   8. An exception, in a kernel or for lack of memory, leaves everything consistent.
//   9. With no eviction, the cost of being managed is small enough to leave on.
//
// Where to find what: block.h, storage.h and op.h are the things; options.h, stats.h and events.h the lists that Python
// shares; docs/architecture.md follows an allocation, an op, a transfer and a plan through the classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace coop {

using Bytes = std::size_t;
using Seconds = double;

constexpr Seconds kShortest = 1e-9;  // below the cost of any op: keeps scores finite
constexpr Seconds kNever = std::numeric_limits<Seconds>::infinity();

class Engine;
struct Chunk;
struct Op;
struct Storage;

// Where a new storage goes. Sources, tiny blocks and expensive results gather at the low end of the arena, cheap ones
// at the high end, so that cheap neighbours form long runs. Packed: into the lowest hole, whatever the placement; so
// what an op takes does not depend on where the arena ends.
enum class Side : std::uint8_t { low, high, packed };

// The engine's time, and the program's own: without what it waited for, and what ran again.
struct Clock {
  Seconds now = 0;
  Seconds ran = 0;
};

}  // namespace coop
