// DELTA (2022). Its filter: the storage with the largest product of size and staleness leaves
// first. Its director, which chooses between swapping and recomputing, is shared by all policies:
// leaves_with_bytes.
#include <algorithm>

#include "engine/policy.h"

namespace coop {
namespace {

struct Delta {
  static double of(SearchContext& context, Block& block) {
    const Storage& storage = *block.storage;
    if (storage.claims.wanted) return SearchContext::score_of_wanted(storage);
    if (storage.droppable()) return 0;
    const Seconds stale = std::max(context.clock.now - storage.last_access, kShortest);
    return 1 / (static_cast<double>(block.bytes) * stale);
  }
};

const RegisterPolicy registered("delta", &one_at_a_time<Delta>);

}  // namespace
}  // namespace coop
