// Coop's sliding window (NeurIPS 2023, section 3): the cheapest run of neighbours that is large
// enough.
//
// Evictable storages leave. A storage that cannot leave, or is much more expensive than its bytes
// are worth, may be moved to the run's edge; that gains no bytes. Raw and locked blocks end a run.
//
// Differences from the authors' code: every window is shrunk from the left before it is compared,
// the last one too; a staleness of zero counts as a small number instead of dividing by zero; cost
// is per byte of the window (Options::per_byte), because the sum alone prefers small expensive
// results; storages that nobody holds cost nothing; a source or an expensive result in the way is
// moved aside, and ends a run only if it is locked.
#pragma once

#include "engine/search.h"

namespace coop {

// The cheapest run of blocks that is large enough, but would not be without its first or its last
// block. Of equally cheap ones, the one nearest the request's end of the arena. Also the last
// resort of every policy.
Run cheapest_window(SearchContext& context, Bytes needed, bool may_move);

// A run of free blocks and droppable storages, near the place where the last one was found: this
// serves most requests. Empty: there is none nearby.
Run free_window(SearchContext& context, Bytes needed);

// The largest piece that could be freed now.
Bytes largest_run(const Arena& arena, bool may_move);

}  // namespace coop
