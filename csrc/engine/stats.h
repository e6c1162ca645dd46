// The engine's figures.
#pragma once

#include "engine/types.h"

namespace coop {

// The one list: name, type, default, meaning. Bindings, stub and Python's coop.Stats follow from
// it.
#define COOP_STATS(X)                                                                                   \
  X(budget, Bytes, 0, "The bytes allowed; the size of the arena.")                                      \
  X(in_use, Bytes, 0, "Bytes held by the program and by running kernels now.")                          \
  X(peak, Bytes, 0, "The most that was in use at once.")                                                \
  X(cached, Bytes, 0,                                                                                   \
    "Bytes of recomputed results that nobody holds: kept while there is room, and the first to "        \
    "leave.")                                                                                           \
  X(free, Bytes, 0, "Bytes that hold nothing.")                                                         \
  X(largest_free, Bytes, 0, "The largest free block.")                                                  \
  X(sources, Bytes, 0, "Bytes that nothing can recompute: parameters, buffers, data, optimizer state.") \
  X(floor, Bytes, 0,                                                                                    \
    "The most that a single op needed at once, and, unless they swap, the sources with it. No "         \
    "budget below it can serve this program.")                                                          \
  X(evictions, std::uint64_t, 0, "Storages that were evicted while the program held them.")             \
  X(rematerialisations, std::uint64_t, 0, "Storages that came back because an op ran again.")           \
  X(replays, std::uint64_t, 0, "Ops that were run again.")                                              \
  X(moves, std::uint64_t, 0, "Storages that were copied to another place in the arena.")                \
  X(commits, std::uint64_t, 0, "Storages that cannot be recomputed any more, by decision.")             \
  X(allocations, std::uint64_t, 0, "Blocks that were handed out.")                                      \
  X(ops, std::uint64_t, 0, "Ops that the program ran.")                                                 \
  X(recorded_ops, std::uint64_t, 0, "Of these, those that could be run again.")                         \
  X(storages, std::uint64_t, 0, "Storages that exist now, in the arena or not.")                        \
  X(records, std::uint64_t, 0, "Ops that are recorded now.")                                            \
  X(looks, std::uint64_t, 0, "Records that were examined to find what can be released.")                \
  X(searches, std::uint64_t, 0, "Searches for something to evict.")                                     \
  X(exact_costs, std::uint64_t, 0, "Costs that were found by visiting every evicted neighbour.")        \
  X(union_find_costs, std::uint64_t, 0, "Costs that were estimated from components.")                   \
  X(evicted_bytes, Bytes, 0, "Bytes of all evictions.")                                                 \
  X(moved_bytes, Bytes, 0, "Bytes of all moves.")                                                       \
  X(op_seconds, Seconds, 0, "Time in the program's own ops.")                                           \
  X(recompute_seconds, Seconds, 0, "Time in ops that were run again.")                                  \
  X(search_seconds, Seconds, 0, "Time in searches.")                                                    \
  X(move_seconds, Seconds, 0, "Time in moves.")                                                         \
  X(fragmentation, double, 0,                                                                           \
    "Free bytes that were left after requests that forced an eviction, as a share of the budget, "      \
    "on average.")                                                                                      \
  X(swaps_out, std::uint64_t, 0, "Transfers out: a copy of a storage was written outside.")             \
  X(swaps_in, std::uint64_t, 0, "Transfers in: a storage was read back.")                               \
  X(swapped_out, Bytes, 0, "Bytes of the transfers out.")                                               \
  X(swapped_in, Bytes, 0, "Bytes of the transfers in.")                                                 \
  X(transfer_seconds, Seconds, 0, "Time of all transfers.")                                             \
  X(hidden_seconds, Seconds, 0, "Of these, what the program did not wait for.")                         \
  X(waited_seconds, Seconds, 0,                                                                         \
    "Time that the program waited for transfers. May be more than one takes, where it waits "           \
    "behind others.")                                                                                   \
  X(prefetch_hits, std::uint64_t, 0, "Storages that were back, or on their way, when needed.")          \
  X(prefetch_misses, std::uint64_t, 0, "Storages that had to be asked for when needed.")                \
  X(planned_steps, std::uint64_t, 0, "Steps that followed the plan to their end.")                      \
  X(planned_ops, std::uint64_t, 0, "Ops that followed the plan.")                                       \
  X(plan_losses, std::uint64_t, 0, "How often the program did something else than was planned.")

struct Stats {
#define COOP_STAT(name, type, value, meaning) type name = value;
  COOP_STATS(COOP_STAT)
#undef COOP_STAT
};

}  // namespace coop
