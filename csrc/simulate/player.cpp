// Playing a trace: what the torch hook does around each op, without a kernel.
#include "simulate/player.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace coop {

// --- the program ---------------------------------------------------------------------------------------------------------

void TraceProgram::source(Bytes bytes, bool parameter, std::int64_t carries) {
  instructions.push_back({.kind = Instruction::Kind::source,
                          .parameter = parameter,
                          .tensor = tensors++,
                          .carries = carries,
                          .outputs = {{bytes, -1}}});
}

void TraceProgram::op(std::vector<std::uint32_t> inputs, const std::vector<std::pair<Bytes, std::int32_t>>& outputs,
                      std::vector<std::uint32_t> writes, Seconds cost, Bytes scratch, bool backward, bool replayable) {
  Instruction instruction{.kind = Instruction::Kind::op,
                          .backward = backward,
                          .replayable = replayable,
                          .tensor = tensors,
                          .inputs = std::move(inputs),
                          .writes = std::move(writes),
                          .cost = cost,
                          .scratch = scratch};
  for (const auto& [bytes, alias] : outputs) instruction.outputs.push_back({bytes, alias});
  tensors += static_cast<std::uint32_t>(outputs.size());
  instructions.push_back(std::move(instruction));
}

void TraceProgram::hold(std::uint32_t tensor) {
  instructions.push_back({.kind = Instruction::Kind::hold, .tensor = tensor});
}

void TraceProgram::release(std::uint32_t tensor) {
  instructions.push_back({.kind = Instruction::Kind::release, .tensor = tensor});
}

// --- a step --------------------------------------------------------------------------------------------------------------

Player::Player(const Options& options, const TraceProgram& program, double patience, bool watch)
    : program_(program), engine_(std::make_unique<Engine>(options, *this)) {
  engine_->watch(watch);
  if (options.swap) {
    out_.bandwidth = options.swap_out;
    in_.bandwidth = options.swap_in;
  }
  for (const Instruction& instruction : program.instructions) patience_ += instruction.cost;
  patience_ *= patience;
}

Player::~Player() = default;

Player::Status Player::play(int steps) {
  try {
    for (step_ = 0; step_ < steps; ++step_) {
      last_tensors_ = std::exchange(tensors_, std::vector<Home*>(program_.tensors, nullptr));
      last_references_ = std::exchange(references_, std::vector<std::uint32_t>(program_.tensors, 0));
      carry_over();
      for (at_ = 0; at_ < program_.instructions.size(); ++at_) {
        run(program_.instructions[at_]);
        if (engine_->floor() > floor_) {
          floor_ = engine_->floor();
          floor_setter_ = at_;
        }
        if (engine_->recompute_seconds() > patience_ * (step_ + 1)) return Status::thrash;
      }
    }
  } catch (const Shortage& shortage) {
    shortage_ = shortage;
    return shortage.in_circles ? Status::thrash : Status::out_of_memory;
  }
  return Status::ok;
}

void Player::run(const Instruction& instruction) {
  switch (instruction.kind) {
    case Instruction::Kind::source: run_source(instruction); break;
    case Instruction::Kind::op: run_op(instruction); break;
    case Instruction::Kind::hold:
      ++references_[instruction.tensor];
      ++home(instruction.tensor).references;
      break;
    case Instruction::Kind::release:
      --references_[instruction.tensor];
      release(home(instruction.tensor), 1);
      break;
  }
}

// --- who holds what ------------------------------------------------------------------------------------------------------

// Parameters and state remain from the last step. Each gets one reference for each source that
// names it, before other tensors take over its number.
void Player::carry_over() {
  carried_.assign(program_.tensors, nullptr);
  if (last_tensors_.empty()) return;
  for (const Instruction& instruction : program_.instructions) {
    if (instruction.kind != Instruction::Kind::source) continue;
    Home* last = last_tensors_[instruction.carries < 0 ? instruction.tensor : instruction.carries];
    if (last && last->references) carried_[instruction.tensor] = last;
  }
  for (Home* home : carried_) {
    if (!home) continue;
    home->step = step_;
    home->references = 0;
  }
  for (Home* home : carried_) {
    if (home) ++home->references;
  }
}

Player::Home& Player::home(std::uint32_t tensor) {
  Home* home = tensors_.at(tensor);
  if (!home || !home->references) {
    throw std::invalid_argument("instruction " + std::to_string(at_) + " uses tensor " + std::to_string(tensor) +
                                ", which nobody holds");
  }
  return *home;
}

// A new tensor begins with one reference. The tensor with the same number from the last step is
// released, as when a program assigns a new value to a variable.
void Player::name(std::uint32_t tensor, Home& home) {
  tensors_[tensor] = &home;
  references_[tensor] = 1;
  ++home.references;
  release_last(tensor);
}

void Player::release(Home& home, std::uint32_t references) {
  home.references -= references;
  if (home.references || !home.storage) return;
  engine_->let_go(*std::exchange(home.storage, nullptr));
}

void Player::release_last(std::uint32_t tensor) {
  if (tensor >= last_tensors_.size()) return;
  Home* last = std::exchange(last_tensors_[tensor], nullptr);
  if (last && last->step != step_) release(*last, std::exchange(last_references_[tensor], 0));
}

Player::Home& Player::bind(Block* block, Bytes bytes) {
  Home& home = homes_.emplace_back();
  home.step = step_;
  if (block) home.storage = engine_->bind(block->offset, bytes, &home);
  return home;
}

// A source that is not carried over is new.
void Player::run_source(const Instruction& instruction) {
  if (Home* last = carried_[instruction.tensor]) {
    --last->references;  // the reference from carry_over
    name(instruction.tensor, *last);
    return;
  }
  const Bytes bytes = instruction.outputs[0].bytes;
  engine_->expect(Side::low);
  Home& made = bind(bytes ? engine_->allocate(bytes) : nullptr, bytes);
  made.parameter = instruction.parameter;
  name(instruction.tensor, made);
}

// --- an op ---------------------------------------------------------------------------------------------------------------

void Player::run_op(const Instruction& op) {
  const bool view = op.writes.empty() && !op.outputs.empty() &&
                    std::all_of(op.outputs.begin(), op.outputs.end(), [](const auto& o) { return o.alias >= 0; });
  if (view) {
    engine_->ran(op.cost);
  } else {
    call_.begin(*engine_, "");
    collect(op);
    try {
      call_.enter();
    } catch (const Shortage&) {
      call_.give_up();
      throw;
    }
    try {
      compute(op);
    } catch (...) {
      call_.overwritten();
      call_.leave();
      throw;
    }
    call_.leave();
    outputs_.clear();
    for (const Home* home : made_) outputs_.push_back(home->storage);
    call_.ran(op.cost, outputs_);
  }
  for (std::uint32_t i = 0, fresh = 0; i < op.outputs.size(); ++i) {
    const TraceProgram::Output& output = op.outputs[i];
    name(op.tensor + i, output.alias < 0 ? *made_[fresh++] : home(op.inputs[static_cast<std::size_t>(output.alias)]));
  }
  made_.clear();
}

void Player::collect(const Instruction& op) {
  for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
    const Home& from = home(op.inputs[i]);
    const bool writes = std::find(op.writes.begin(), op.writes.end(), i) != op.writes.end();
    if (from.storage) call_.add(*from.storage, OpCall::Access::read, writes || from.parameter);
  }
  for (const std::uint32_t index : op.writes) {
    if (Storage* storage = home(op.inputs[index]).storage) call_.add(*storage, OpCall::Access::write, false);
  }
}

// The same choice as the torch hook's.
bool Player::worth_recording(const Instruction& op) const {
  const bool backward = op.backward && !engine_->options().record_backward && !engine_->planned_again();
  const bool writes_bytes = op.writes.empty() || !call_.written().empty();
  return op.replayable && !op.outputs.empty() && !backward && writes_bytes && call_.recordable();
}

void Player::compute(const Instruction& op) {
  const Options& options = engine_->options();
  const bool record = worth_recording(op);
  call_.copy_written([](Storage&) {});
  Bytes all = 0;
  for (const TraceProgram::Output& output : op.outputs) all += output.bytes;
  for (const Storage* storage : call_.written()) all += storage->bytes;
  const bool passing = op.backward && !options.record_backward && !record;  // a gradient, not recorded
  engine_->expect(passing ? Side::high : engine_->side_of(op.cost / static_cast<double>(std::max<Bytes>(all, 1))));
  call_.run([&] { allocate(op, blocks_); }, [&] { return call_.written().empty(); }, [](const Shortage&, bool) {});

  outputs_.clear();
  Storage* target = record ? call_.target() : nullptr;
  if (target) outputs_.push_back(target);
  for (std::size_t i = 0, fresh = 0; i < op.outputs.size(); ++i) {
    if (op.outputs[i].alias >= 0) continue;
    Home& home = bind(blocks_[fresh++], op.outputs[i].bytes);
    made_.push_back(&home);
    if (op.outputs[i].bytes > options.tiny) outputs_.push_back(home.storage);
  }
  blocks_.clear();
  if (!record || outputs_.empty()) return call_.overwritten();
  edges_.assign(target ? 1 : 0, target);
  for (Storage* storage : call_.operands()) {
    if (storage != target) edges_.push_back(storage);
  }
  call_.record(const_cast<Instruction*>(&op), op.cost, edges_, outputs_, target ? InPlace::on_old : InPlace::no);
}

// Allocates blocks for all outputs with bytes of their own, as a kernel does. All or none.
void Player::allocate(const Instruction& op, std::vector<Block*>& blocks) {
  blocks.clear();
  try {
    for (const TraceProgram::Output& output : op.outputs) {
      if (output.alias < 0) blocks.push_back(output.bytes ? engine_->allocate(output.bytes) : nullptr);
    }
    if (op.scratch) engine_->free(engine_->allocate(op.scratch)->offset);
  } catch (const Shortage&) {
    for (const Block* block : blocks) {
      if (block) engine_->free(block->offset);
    }
    blocks.clear();
    throw;
  }
}

Seconds Player::copy(Bytes, Bytes, Bytes bytes) {
  return static_cast<Seconds>(bytes) / engine_->options().copy_bandwidth;
}

void Player::follow(std::shared_ptr<const Planned> plan) {
  plan_ = plan;
  if (plan->out_bandwidth > 0) {
    out_ = {plan->out_latency, plan->out_bandwidth};
    in_ = {plan->in_latency, plan->in_bandwidth};
  }
  engine_->follow(std::move(plan));
}

std::uint32_t Player::begin(Stream& stream, Bytes bytes, Seconds now) {
  if (stream.bandwidth <= 0) return 0;
  transports_.push_back({&stream, now, stream.latency + static_cast<double>(bytes) / stream.bandwidth});
  stream.waiting.push_back(static_cast<std::uint32_t>(transports_.size()));
  return stream.waiting.back();
}

void Player::run_until(Stream& stream, Seconds now) {
  while (!stream.waiting.empty()) {
    Transport& next = transports_[stream.waiting.front() - 1];
    const Seconds start = std::max(stream.free, next.asked);
    if (start >= now) break;
    stream.waiting.pop_front();
    next.end = stream.free = start + next.seconds;
  }
}

std::uint32_t Player::begin_out(Bytes, Bytes bytes, Seconds now) { return begin(out_, bytes, now); }
std::uint32_t Player::begin_in(std::uint32_t, Bytes, Bytes bytes, Seconds now) { return begin(in_, bytes, now); }

// If the transfer has not begun, it goes before the others that wait.
void Player::wait(std::uint32_t ticket, Seconds now) {
  Transport& transport = transports_[ticket - 1];
  Stream& stream = *transport.stream;
  run_until(stream, now);
  if (transport.end < 0) {
    std::erase(stream.waiting, ticket);
    transport.end = stream.free = std::max(stream.free, now) + transport.seconds;
  }
  transport.awaited = true;
}

// No bytes are written, so any page number will do.
Transfer Player::finish(std::uint32_t ticket, Seconds now) {
  Transport& transport = transports_[ticket - 1];
  run_until(*transport.stream, now);
  if (transport.end < 0 || (transport.end > now && !transport.awaited)) return {};
  return {true, 1, transport.seconds, std::max(transport.end - now, 0.0)};
}

bool Player::cancel(std::uint32_t ticket) {
  return transports_[ticket - 1].end < 0 && std::erase(transports_[ticket - 1].stream->waiting, ticket);
}

Seconds Player::replay(Op& op, Block* target, Block** produced) {
  const auto& instruction = *static_cast<const Instruction*>(op.recipe);
  std::vector<Block*> blocks;
  allocate(instruction, blocks);
  replays_.emplace_back(at_, static_cast<std::size_t>(&instruction - program_.instructions.data()));
  std::size_t fresh = 0, recorded = target ? 1 : 0;
  for (const TraceProgram::Output& output : instruction.outputs) {
    if (output.alias >= 0) continue;
    Block* block = blocks[fresh++];
    if (output.bytes > engine_->options().tiny) {
      produced[recorded++] = block;
    } else if (block) {
      engine_->free(block->offset);
    }
  }
  return instruction.cost;
}

}  // namespace coop
