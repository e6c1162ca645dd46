// An example of a policy: the largest first. It is registered in the engine's tests only, and
// passes all of them.
#include "engine/policy.h"

namespace coop {
namespace {

struct LargestFirst {
  static double of(SearchContext&, Block& block) { return -static_cast<double>(block.bytes); }
};

const RegisterPolicy registered("example-largest", &one_at_a_time<LargestFirst>);

}  // namespace
}  // namespace coop
