// Finding room with any policy, and the policies by name.
#include "engine/policy.h"

#include <map>
#include <stdexcept>

#include "engine/window.h"

namespace coop {

namespace {

std::map<std::string, MakePolicy>& registered() {
  static std::map<std::string, MakePolicy> all;
  return all;
}

// The storages of a run that leave: their cost, whether one is a source that has to be written
// first, and whether one is wanted.
struct Leaving {
  Seconds cost = 0;
  bool unwritten = false, wanted = false;
};

Leaving leaving(SearchContext& context, Run run) {
  Leaving result;
  run.each([&](Block& block) {
    Storage* storage = block.storage;
    if (!storage || context.moves_aside(*storage)) return;
    if (!storage->droppable()) result.cost += context.cost_of_leaving(*storage);
    result.unwritten = result.unwritten || (storage->source() && !storage->copy.page);
    result.wanted = result.wanted || storage->claims.wanted;
  });
  return result;
}

}  // namespace

RegisterPolicy::RegisterPolicy(const char* name, MakePolicy make) { registered()[name] = make; }

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : registered()) names.push_back(name);
  return names;
}

std::unique_ptr<Policy> make_policy(const Options& options) {
  const auto found = registered().find(options.policy);
  if (found == registered().end()) throw std::invalid_argument("there is no policy " + options.policy);
  return found->second(options);
}

Run find_room(Policy& policy, SearchContext& context, Bytes needed) {
  context.unwritten_too = true;
  Run run;
  for (const bool wanted_too : {false, true}) {
    context.wanted_too = wanted_too;
    run = policy.choose(context, needed);
    if (!run) {
      context.price.per_byte = SearchPrice().per_byte;
      run = cheapest_window(context, needed, context.options.rescue);
    }
    if (run) break;
  }
  const Options& options = context.options;
  if (!run || context.wanted_too || !context.may_take_wanted || !options.swap || !context.windows) return run;
  const Leaving first = leaving(context, run);
  if (!first.unwritten) return run;
  SearchContext other = context;
  other.wanted_too = true;
  other.unwritten_too = false;
  const Run instead = policy.choose(other, needed);
  if (!instead) return run;
  const Leaving second = leaving(other, instead);
  if (!second.wanted || second.cost >= first.cost) return run;
  context.found = other.found;
  context.wanted_too = other.wanted_too;
  context.unwritten_too = other.unwritten_too;
  return instead;
}

}  // namespace coop
