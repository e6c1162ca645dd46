// The second driver: plays a trace on the engine, on a clock instead of a processor.
//
// It uses the same protocol around each op as the torch hook (engine/op_call.h). So simulated
// figures come from the code that trains.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/op_call.h"

namespace coop {

// A trace as the player reads it. Tensors are numbered in the order in which they appear.
struct TraceProgram {
  struct Output {
    Bytes bytes;
    std::int32_t alias;  // -1: a storage of its own, else the input whose storage it shares
  };
  struct Instruction {
    enum class Kind : std::uint8_t { source, op, hold, release };
    Kind kind;
    bool backward = false;
    bool replayable = true;
    bool parameter = false;    // a source that stays
    std::uint32_t tensor = 0;  // the tensor of a source, hold or release; an op's first output
    std::int64_t carries = -1;
    std::vector<std::uint32_t> inputs = {};
    std::vector<Output> outputs = {};  // a source has one
    std::vector<std::uint32_t> writes = {};
    Seconds cost = 0;
    Bytes scratch = 0;
  };
  std::vector<Instruction> instructions;
  std::uint32_t tensors = 0;

  void source(Bytes bytes, bool parameter, std::int64_t carries);
  void op(std::vector<std::uint32_t> inputs, const std::vector<std::pair<Bytes, std::int32_t>>& outputs,
          std::vector<std::uint32_t> writes, Seconds cost, Bytes scratch, bool backward, bool replayable);
  void hold(std::uint32_t tensor);
  void release(std::uint32_t tensor);
};

class Player final : public Driver {
 public:
  // Recomputation beyond `patience` times the ops' own cost counts as thrashing.
  Player(const Options& options, const TraceProgram& program, double patience, bool watch);
  ~Player() override;

  enum class Status { ok, out_of_memory, thrash };
  // Plays the program `steps` times. Tensors that are alive at the end of a step exist in the next.
  Status play(int steps);

  Engine& engine() { return *engine_; }
  std::size_t at() const { return at_; }                      // the instruction that failed
  const Shortage& shortage() const { return shortage_; }      // why it failed
  std::size_t floor_setter() const { return floor_setter_; }  // the instruction that needed the most memory
  // The replays: during which instruction, and of which instruction.
  const std::vector<std::pair<std::size_t, std::size_t>>& replays() const { return replays_; }

  Seconds replay(Op& op, Block* target, Block** produced) override;
  void detach(Storage&) override {}
  void attach(Storage&) override {}
  Seconds copy(Bytes to, Bytes from, Bytes bytes) override;
  void drop(Op&) override {}
  void drop(Storage&) override {}
  bool evacuate(Storage&) override { return true; }
  void abandon(Storage&) override {}
  std::uint64_t digest(Bytes, Bytes) override { return 1; }
  std::uint32_t begin_out(Bytes offset, Bytes bytes, Seconds now) override;
  std::uint32_t begin_in(std::uint32_t page, Bytes offset, Bytes bytes, Seconds now) override;
  void wait(std::uint32_t ticket, Seconds now) override;
  Transfer finish(std::uint32_t ticket, Seconds now) override;
  bool cancel(std::uint32_t ticket) override;

  // To be called before the first step.
  void follow(std::shared_ptr<const Planned> plan);

 private:
  using Instruction = TraceProgram::Instruction;

  // A storage of the trace.
  struct Home {
    Storage* storage = nullptr;  // null: it has no bytes, or nobody holds it any more
    std::uint32_t references = 0;
    int step = 0;  // the last step that it belongs to
    bool parameter = false;
  };

  // One direction of the link: one transfer at a time. Transfers that the program waits for go
  // first.
  struct Stream {
    Seconds latency = 0;
    double bandwidth = 0;                    // bytes per second; 0: there is no link
    Seconds free = 0;                        // the time from which it is idle
    std::deque<std::uint32_t> waiting = {};  // transfers that have not begun
  };
  struct Transport {
    Stream* stream;
    Seconds asked, seconds;
    Seconds end = -1;      // when it ends; -1: it has not begun
    bool awaited = false;  // the program waits for it
  };

  void run_until(Stream& stream, Seconds now);
  std::uint32_t begin(Stream& stream, Bytes bytes, Seconds now);
  void run(const Instruction& instruction);
  void run_source(const Instruction& instruction);
  void run_op(const Instruction& op);

  void carry_over();
  Home& home(std::uint32_t tensor);
  void name(std::uint32_t tensor, Home& home);
  void release(Home& home, std::uint32_t references);
  void release_last(std::uint32_t tensor);
  Home& bind(Block* block, Bytes bytes);

  void collect(const Instruction& op);
  bool worth_recording(const Instruction& op) const;
  void compute(const Instruction& op);
  void allocate(const Instruction& op, std::vector<Block*>& blocks);

  const TraceProgram& program_;
  Seconds patience_ = 0;
  std::deque<Home> homes_;
  std::vector<Home*> tensors_, last_tensors_;  // of this step and of the one before, by number; null: none
  std::vector<std::uint32_t> references_, last_references_;  // references to each of them
  std::vector<Home*> carried_;             // by source: its storage from the last step; null: it is new
  std::vector<Storage*> edges_, outputs_;  // what the running op is recorded with
  std::vector<Block*> blocks_;
  std::vector<Home*> made_;
  int step_ = 0;
  std::size_t at_ = 0, floor_setter_ = 0;
  Bytes floor_ = 0;
  Shortage shortage_;
  std::vector<std::pair<std::size_t, std::size_t>> replays_;
  std::shared_ptr<const Planned> plan_;
  Stream out_, in_;
  std::vector<Transport> transports_;  // by ticket, from 1 on
  std::unique_ptr<Engine> engine_;
  OpCall call_;
};

}  // namespace coop
