// Coop's sliding window (NeurIPS 2023, section 3): the cheapest run of neighbours that is large enough.
//
// What is evictable leaves. What is not, or is much more expensive than its bytes are worth, may be moved to the run's
// edge and makes no room itself. Raw and locked blocks are walls.
//
// What differs from the authors' code: every window is shrunk from the left before it is compared, the last one too; a
// staleness of zero is a small number instead of a division by zero; cost is per byte of the window
// (Options::per_byte), because the sum alone prefers small expensive results; storages nobody holds cost nothing; a
// source in the way, or a result that is expensive, is moved aside, and a wall only if it is locked.
#pragma once

#include "engine/search.h"

namespace coop {

// The cheapest of all runs of blocks that are large enough, and are not without their first or their last block; of
// several, the one nearest the request's end of the arena. Also every policy's last resort.
Run cheapest_window(SearchContext& context, Bytes needed, bool may_move);

// A run of free blocks and of storages that nobody will ask for, near the place where the last was found: most requests
// are met by one. None: there is none nearby.
Run free_window(SearchContext& context, Bytes needed);

// The largest piece that could be freed now.
Bytes largest_run(const Arena& arena, bool may_move);

}  // namespace coop
