// A plan in force: what leaves and what comes back around each op of a step that was planned.
//
// The driver says which op comes next. As long as that is the plan's next node, the plan's steps are carried out around it, and
// what the plan has in memory is wanted: for a request it may be moved, and leaves only when there is no other way. When
// another op comes, or one that makes something else, the plan is lost: nothing is wanted any more and the policy goes on
// alone, until the plan's first op comes again. Whatever happens, a plan costs time and never correctness: storages come back
// through their lineage, planned or not.
//
// The plan speaks of nodes and values. Which storage a value is, is known from the op that makes it on; the old version of
// what was overwritten in place is a storage of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/walk.h"

namespace coop {

// The plan as the engine reads it. Values are numbered.
struct Planned {
  enum class Kind : std::uint8_t { compute, free, out, in };
  // Where something goes, from the high end of the arena down.
  struct Room {
    Bytes bytes, offset;
    std::int64_t value;  // that begins there; kScratch: none
  };
  static constexpr std::int64_t kScratch = -1;
  struct Step {
    Kind kind;
    std::uint32_t number;         // of a node that is computed again, else of a value
    std::vector<Room> room = {};  // for what it makes, and for its scratch
  };
  struct Output {
    std::uint32_t value;
    Bytes bytes;
    std::int64_t over;  // the value whose bytes it takes over; -1: none
  };
  struct Node {
    std::string name;  // of the op
    bool silent;       // no op of the driver's: it is passed over
    bool again = false;
    std::vector<Output> outputs;
    std::vector<Room> room = {};
    std::vector<Step> before = {}, after = {};
  };
  std::vector<Node> nodes;
  std::uint32_t values = 0;
  // Of paging, for a driver that only counts: seconds for each transfer, bytes per second.
  double in_latency = 0, in_bandwidth = 0, out_latency = 0, out_bandwidth = 0;

  void node(std::string name, bool silent, std::vector<Output> outputs, std::vector<Room> room);
  // A step of the plan, in order: before the first run of a node, or after the last.
  void step(Kind kind, std::uint32_t number, std::uint32_t node, std::vector<Room> room);
};

class Follower final : public PlannedPlaces {
 public:
  Follower(const Options& options, Arena& arena, Journal& journal, Lineage& lineage, Forecast& forecast, Blocks& blocks,
           Transfers& transfers, Walk& walk, std::shared_ptr<const Planned> plan);

  // An op is about to run: what the plan has for it.
  void before(std::string_view op);
  // The op has run, and made these; null where there are no bytes. It may have written to others.
  void after(std::span<Storage* const> made, std::span<Storage* const> written);
  Block* block_for(Bytes bytes, Side side) override;
  bool under_way() const override { return at_ > 0; }
  // The op that runs now will be run again.
  bool again() const { return running_ && plan_->nodes[at_].again; }

  // The bytes are another storage's from now on: those of an old version.
  void renamed(Storage& storage, Storage& old);
  void forgotten(Storage& storage);
  // Nothing is wanted any more.
  void want_nothing();

  std::uint64_t steps() const { return steps_; }
  std::uint64_t ops() const { return ops_; }
  std::uint64_t losses() const { return losses_; }
  // Where it was last lost, as a sentence; empty: never.
  const std::string& why() const { return why_; }

 private:
  void welcome();
  void pass_silent();
  void carry_out(const std::vector<Planned::Step>& steps);
  Block* inside(const Planned::Room& room, Bytes bytes);
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
  std::vector<Storage*> storages_;  // by value, and behind those what is a source to the plan; null: not known, or gone
  std::vector<bool> wanted_;
  std::vector<Storage*> targets_;        // of the running op: what it overwrites, by output
  std::vector<Planned::Room> room_;      // for what runs now
  std::vector<Planned::Room> requests_;  // of what runs now, so far, and where they were met
  // For each node, what each request of its kernel is for; empty: not known yet.
  std::vector<std::vector<std::int64_t>> requests_of_;
  std::size_t node_ = 0;   // that runs now
  std::string unplanned_;  // the running op, if it is not the plan's next
  std::size_t first_ = 0;  // node that is an op of the driver's
  std::size_t at_ = 0;
  bool running_ = false;
  bool welcomed_ = false;  // what was there before the step
  std::uint64_t steps_ = 0, ops_ = 0, losses_ = 0;
  std::string why_;
};

}  // namespace coop
