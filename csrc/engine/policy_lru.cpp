// LRU: the least recently used storage leaves first.
#include "engine/policy.h"

namespace coop {
namespace {

struct Lru {
  static double of(SearchContext&, Block& block) {
    return block.storage->droppable() ? -1 : block.storage->last_access;
  }
};

const RegisterPolicy registered("lru", &one_at_a_time<Lru>);

}  // namespace
}  // namespace coop
