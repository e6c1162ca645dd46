// DTR (ICLR 2021): the lowest projected cost over size and staleness leaves first.
#include "engine/policy.h"

namespace coop {
namespace {

struct Dtr {
  static double of(SearchContext& context, Block& block) {
    return context.score(*block.storage) / static_cast<double>(block.bytes);
  }
};

const RegisterPolicy registered("dtr", &one_at_a_time<Dtr>);

}  // namespace
}  // namespace coop
