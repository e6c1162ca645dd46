// What the user may choose. Each part of Coop can be switched off, for ablation.
#pragma once

#include <string>

#include "engine/types.h"

namespace coop {

enum class Placement : std::uint8_t {
  two_ended,  // the fitting hole nearest the side's end
  best_fit,   // the smallest fitting hole; the side only chooses the edge inside it
};

enum class CostModel : std::uint8_t {
  own,         // the storage's op alone
  exact,       // plus all evicted ancestors and descendants, reached through evicted storages
  union_find,  // plus the components of evicted neighbours (DTR's e-hat)
};

// The one list: name, type, default, meaning. Bindings, stub and Python's surface follow from it.
#define COOP_OPTIONS(X)                                                                             \
  X(budget, Bytes, 0, "Bytes of the arena.")                                                        \
  X(alignment, Bytes, 64, "Blocks are multiples of so many bytes.")                                 \
  X(policy, std::string, "coop", "What chooses the victims: the name of a registered policy.")      \
  X(placement, Placement, Placement::two_ended, "Which hole a new block takes.")                    \
  X(cost, CostModel, CostModel::exact, "How the cost of an eviction is found.")                     \
  X(window, bool, true, "Victims are one run of neighbours (coop).")                                \
  X(partition, bool, true, "Cheap and expensive results go to opposite sides.")                     \
  X(per_byte, bool, true, "A window's cost is divided by its bytes (coop).")                        \
  X(needed_only, bool, true, "Costs count only evicted storages that are needed.")                  \
  X(keep_dead, bool, true, "What nobody holds stays until its room is needed.")                     \
  X(in_place, bool, true, "In-place ops rename versions; off: copy on write.")                      \
  X(move, bool, true, "Sources and expensive results in a window's way are copied aside (coop).")   \
  X(rescue, bool, true, "Where nothing else helps, blocks are moved together.")                     \
  X(evict, bool, true, "Off: nothing leaves, and memory is only measured.")                         \
  X(record_backward, bool, false, "Gradients inside a backward pass are recorded too.")             \
  X(tiny, Bytes, 512, "Storages up to this size are never worth evicting.")                         \
  X(max_depth, std::uint32_t, 1u << 16, "Longer chains of ops are cut by committing.")              \
  X(max_versions, std::uint32_t, 8, "Longer chains of in-place versions are cut as well.")          \
  X(exact_limit, std::uint32_t, 64, "Ops visited for a cost before union-find takes over.")         \
  X(copy_bandwidth, double, 4e9, "Bytes per second inside the arena, to price a move.")             \
  X(swap, bool, false, "Storages may leave with their bytes, over the link to the swap tier.")      \
  X(swap_out, double, 2e9, "Bytes per second of the link out, to begin with: then it is measured.") \
  X(swap_in, double, 2e9, "Bytes per second of the link in, likewise.")                             \
  X(swap_least, Bytes, 1 << 16, "Storages below this size do not swap.")                            \
  X(swap_load, double, 0.5, "What a transfer slows ops down, as a share of its time.")              \
  X(foresee, bool, true, "With swap: uses are predicted from the last step.")                       \
  X(checks, int, 0, "Rule checks: 0 none, 1 cheap ones, 2 at every event, 3 with all evicted after each op.")

struct Options {
#define COOP_OPTION(name, type, value, meaning) type name = value;
  COOP_OPTIONS(COOP_OPTION)
#undef COOP_OPTION

  // Victims of one request are one run of neighbours that is large enough.
  bool windows() const { return window && policy == "coop"; }
};

}  // namespace coop
