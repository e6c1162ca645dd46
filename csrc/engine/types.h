// The words of the engine, and the numbered rules.
//
// The engine knows no tensor library. It keeps the lineage (which op made which storage from which)
// and the arena (which storage lies where). Its driver runs ops again, copies bytes, and is told
// when a storage's bytes leave or return and when a record is no longer needed.
//
// Rules that always hold. Code and tests refer to them by number.
//   1. Bytes in use never exceed the budget. The arena never grows.
//   2. A storage is in one state: resident, swapped, evicted or dead. An evicted storage can be
//      recomputed; a swapped one has a copy in the tier.
//   3. What is pinned does not leave. An op's inputs and outputs are pinned while it runs, replays
//      included.
//   4. What was evicted comes back bit for bit.
//   5. Before a source is overwritten, everything alive that would need its old value is resident
//      and committed.
//   6. A replay has no side effects: random state, statistics and mutated arguments are as if it
//      never happened.
//   7. Victims of one request lie side by side with the free blocks between them, and the request
//      lands there (policy coop).
//   8. An exception, in a kernel or for lack of memory, leaves everything consistent.
//   9. With no eviction, the cost of being managed is small enough to leave on.
//
// The data types are in block.h, storage.h and op.h. The lists that Python shares are in options.h,
// stats.h and events.h. docs/architecture.md follows an allocation, an op, a transfer and a plan
// through the classes.
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

// Where a new storage goes. Sources, tiny blocks and expensive results gather at the low end of the
// arena, cheap ones at the high end, so that cheap neighbours form long runs. `packed` takes the
// lowest hole, whatever the placement: the bytes that an op takes then do not depend on the size of
// the arena.
enum class Side : std::uint8_t { low, high, packed };

// `now` is the engine's time. `ran` is the program's own: without waiting and without replays.
struct Clock {
  Seconds now = 0;
  Seconds ran = 0;
};

}  // namespace coop
