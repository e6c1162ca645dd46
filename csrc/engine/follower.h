// A plan in force: what leaves and what comes back around each op of a planned step.
//
// The driver says which op comes next. As long as that is the plan's next node, the plan's steps
// are carried out around it. Storages that the plan keeps in memory are `wanted`: they may be
// moved, and leave only when nothing else can. When another op comes, or the op makes something
// else, the plan is lost: nothing is wanted any more, and the policy decides alone until the plan's
// first op comes again. A plan costs time at worst, never correctness: storages come back through
// their lineage, planned or not.
//
// The plan consists of nodes and values. Which storage a value is becomes known when its op has
// run. The old version of a storage that was overwritten in place is a storage of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/walk.h"

namespace coop {

// The plan in the form that the engine reads. Nodes and values are numbered from 0.
struct Planned {
  enum class Kind : std::uint8_t { compute, free, out, in };
  // A planned place. The offset counts from the high end of the arena down.
  struct Place {
    Bytes bytes, offset;
    std::int64_t value;  // the value that lies there; kScratch: none
  };
  static constexpr std::int64_t kScratch = -1;
  struct Step {
    Kind kind;
    std::uint32_t number;          // compute: the number of a node; else of a value
    std::vector<Place> room = {};  // places for its results and its scratch
  };
  struct Output {
    std::uint32_t value;
    Bytes bytes;
    std::int64_t over;  // the value that it overwrites in place; -1: none
  };
  struct Node {
    std::string name;  // of the op
    bool silent;       // the driver runs no op for it: it is skipped
    bool again = false;
    std::vector<Output> outputs;
    std::vector<Place> room = {};
    std::vector<Step> before = {}, after = {};
  };
  std::vector<Node> nodes;
  std::uint32_t values = 0;
  // The link that the plan assumes, for a driver that simulates transfers: seconds per transfer,
  // bytes per second.
  double in_latency = 0, in_bandwidth = 0, out_latency = 0, out_bandwidth = 0;

  void node(std::string name, bool silent, std::vector<Output> outputs, std::vector<Place> room);
  // Adds the plan's next step: before the first run of `node`, or, if there is no such node, after
  // the last one.
  void step(Kind kind, std::uint32_t number, std::uint32_t node, std::vector<Place> room);
};

class Follower final : public PlannedPlaces {
 public:
  Follower(const Options& options, Arena& arena, Journal& journal, Lineage& lineage, Forecast& forecast, Blocks& blocks,
           Transfers& transfers, Walk& walk, std::shared_ptr<const Planned> plan);

  // An op is about to run: carries out the plan's steps before it.
  void before(std::string_view op);
  // The op has run and made these; null where a result has no bytes. It may have written to others.
  void after(std::span<Storage* const> made, std::span<Storage* const> written);
  Block* block_for(Bytes bytes, Side side) override;
  bool under_way() const override { return at_ > 0; }
  // The plan will run the running op again.
  bool again() const { return running_ && plan_->nodes[at_].again; }

  // The value is the old version from now on.
  void renamed(Storage& storage, Storage& old);
  void forgotten(Storage& storage);
  // Forgets which storage each value is: nothing is wanted any more.
  void want_nothing();

  std::uint64_t steps() const { return steps_; }
  std::uint64_t ops() const { return ops_; }
  std::uint64_t losses() const { return losses_; }
  // Where the plan was last lost, as a sentence; empty: never.
  const std::string& why() const { return why_; }

 private:
  void welcome();
  void pass_silent();
  void carry_out(const std::vector<Planned::Step>& steps);
  Block* inside(const Planned::Place& room, Bytes bytes);
  void learn();
  void compute(std::uint32_t node);
  void free(std::uint32_t value);
  void bind(std::uint32_t value, Storage* storage);
  void want(std::uint32_t value);
  void unwant(std::uint32_t value);
  void lose_plan(std::string_view op);
  void end_step();

  const Bytes tiny_;
  Arena& arena_;
  Journal& journal_;
  Lineage& lineage_;
  Forecast& forecast_;
  Blocks& blocks_;
  Transfers& transfers_;
  Walk& walk_;
  const std::shared_ptr<const Planned> plan_;
  std::vector<Storage*> storages_;  // by value; then the plan's sources; null: not known, or gone
  std::vector<bool> wanted_;
  std::vector<Storage*> targets_;         // what the running op overwrites, by output
  std::vector<Planned::Place> room_;      // planned places of the running node
  std::vector<Planned::Place> requests_;  // the running node's requests so far, and where they were placed
  // For each node: the value that each request of its kernel is for; empty: not known yet.
  std::vector<std::vector<std::int64_t>> requests_of_;
  std::size_t node_ = 0;   // the running node
  std::string unplanned_;  // the running op, if it is not the plan's next
  std::size_t first_ = 0;  // the first node that is not silent
  std::size_t at_ = 0;
  bool running_ = false;
  bool welcomed_ = false;  // storages from before the step are in `storages_`
  std::uint64_t steps_ = 0, ops_ = 0, losses_ = 0;
  std::string why_;
};

}  // namespace coop
