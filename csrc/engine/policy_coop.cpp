// Coop: one contiguous window at a time (NeurIPS 2023). Without windows, for ablation, it is DTE.
#include "engine/policy.h"
#include "engine/policy_dte.h"
#include "engine/window.h"

namespace coop {
namespace {

class Coop final : public Policy {
 public:
  Run choose(SearchContext& context, Bytes needed) override {
    if (context.options.keep_dead) {
      if (const Run run = free_window(context, needed)) return run;
    }
    const Run run = cheapest_window(context, needed, context.options.move);
    if (run) context.arena.set_mark(context.side, context.side == Side::low ? run.first : run.last);
    return run;
  }
};

std::unique_ptr<Policy> make(const Options& options) {
  if (!options.window) return one_at_a_time<Dte>(options);
  return std::make_unique<Coop>();
}

const RegisterPolicy registered("coop", &make);

}  // namespace
}  // namespace coop
