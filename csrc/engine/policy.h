// Policies: which neighbouring blocks leave for this request?
//
// A policy sees the arena and the prices and names one run of blocks. The engine evicts the
// storages in it that may leave, slides those that may only move to its low edge, and asks again
// until the hole is large enough. Coop names a run that is large enough at once; DTR, DTE, DELTA
// and LRU name one storage at a time.
//
// A new policy is one file: a class, and a line that registers it (policy_lru.cpp is the shortest).
// It also gets a line in `coop.POLICIES` (src/coop/policies.py), with the switches that belong to
// it. The conformance suite (tests/engine/test_programs.cpp) runs every registered policy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/search.h"

namespace coop {

class Policy {
 public:
  virtual ~Policy() = default;
  // An empty run: nothing may leave.
  virtual Run choose(SearchContext& context, Bytes needed) = 0;
};

// What the policy chooses, or else the cheapest window. A wanted storage leaves only if nothing
// else can, or if that is cheaper than a source that has to be written first.
Run find_room(Policy& policy, SearchContext& context, Bytes needed);

using MakePolicy = std::unique_ptr<Policy> (*)(const Options& options);

// A global object of this type registers a policy.
struct RegisterPolicy {
  RegisterPolicy(const char* name, MakePolicy make);
};

// In alphabetical order.
std::vector<std::string> policy_names();
// Throws std::invalid_argument for a name that is not registered.
std::unique_ptr<Policy> make_policy(const Options& options);

// Evicts the storage with the lowest score, one at a time.
template <typename Score>
class OneAtATime final : public Policy {
 public:
  Run choose(SearchContext& context, Bytes) override {
    Block* best = nullptr;
    double least = kNever;
    for (Block* block = context.arena.first(); block; block = block->next) {
      if (!block->storage || !context.may_leave(*block->storage)) continue;
      const double value = Score::of(context, *block);
      if (value < least || !best) {
        least = value;
        best = block;
      }
    }
    if (best) context.found.per_byte = context.score(*best->storage) / static_cast<double>(best->bytes);
    return {best, best};
  }
};

template <typename Score>
std::unique_ptr<Policy> one_at_a_time(const Options&) {
  return std::make_unique<OneAtATime<Score>>();
}

}  // namespace coop
