#include "engine/policy_dte.h"

#include "engine/policy.h"

namespace coop {
namespace {
const RegisterPolicy registered("dte", &one_at_a_time<Dte>);
}
}  // namespace coop
