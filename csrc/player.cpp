// Playing a trace: the hook's work around each op, without a kernel.
#include "player.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace coop {

// --- the program ---------------------------------------------------------------------------------------------------------

void Program::source(Bytes bytes, bool parameter, std::int64_t carries) {
  instructions.push_back({.kind = Instruction::Kind::source,
                          .parameter = parameter,
                          .tensor = tensors++,
                          .carries = carries,
                          .outputs = {{bytes, -1}}});
}

void Program::op(std::vector<std::uint32_t> inputs, const std::vector<std::pair<Bytes, std::int32_t>>& outputs,
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

void Program::hold(std::uint32_t tensor) {
  instructions.push_back({.kind = Instruction::Kind::hold, .tensor = tensor});
}

void Program::release(std::uint32_t tensor) {
  instructions.push_back({.kind = Instruction::Kind::release, .tensor = tensor});
}

// --- a step --------------------------------------------------------------------------------------------------------------

Player::Player(const Options& options, const Program& program, double patience, bool watch)
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
        const Stats stats = engine_->stats();
        if (stats.floor > floor_) {
          floor_ = stats.floor;
          floor_setter_ = at_;
        }
        if (stats.recompute_seconds > patience_ * (step_ + 1)) return Status::thrash;
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

// Parameters and state are there from the last step on. They are set aside with one reference for each source, before other
// tensors take the names they had.
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

// A new tensor begins with one reference. What had its name in the last step is let go of, as a program does when it gives
// a variable a new value.
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

// What is not carried over is new.
void Player::run_source(const Instruction& instruction) {
  if (Home* last = carried_[instruction.tensor]) {
    --last->references;  // the one that was set aside for it
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
  if (!view) {
    engine_->before_planned("");
    collect(op);
    try {
      engine_->before_overwrite(written_);
      engine_->enter(operands_);
    } catch (const Shortage&) {
      for (Storage* storage : operands_) engine_->reconsider(*storage);
      throw;
    }
    engine_->overwriting(written_);
    try {
      compute(op);
    } catch (...) {
      overwritten();
      engine_->leave(operands_);
      throw;
    }
    engine_->leave(operands_);
  }
  engine_->ran(op.cost);
  if (!view && engine_->following()) {
    outputs_.clear();
    for (const Home* home : made_) outputs_.push_back(home->storage);
    engine_->after_planned(outputs_, written_);
  }
  for (std::uint32_t i = 0, fresh = 0; i < op.outputs.size(); ++i) {
    const Program::Output& output = op.outputs[i];
    name(op.tensor + i, output.alias < 0 ? *made_[fresh++] : home(op.inputs[static_cast<std::size_t>(output.alias)]));
  }
  made_.clear();
}

void Player::collect(const Instruction& op) {
  operands_.clear();
  written_.clear();
  passing_ = false;
  for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
    const Home& from = home(op.inputs[i]);
    Storage* storage = from.storage;
    const bool writes = std::find(op.writes.begin(), op.writes.end(), i) != op.writes.end();
    passing_ = passing_ || (storage && !writes && !from.parameter && storage->source());
    if (!storage || (storage->slot < operands_.size() && operands_[storage->slot] == storage)) continue;
    storage->slot = static_cast<std::uint32_t>(operands_.size());
    operands_.push_back(storage);
  }
  for (const std::uint32_t index : op.writes) {
    Storage* storage = home(op.inputs[index]).storage;
    if (storage && std::find(written_.begin(), written_.end(), storage) == written_.end()) written_.push_back(storage);
  }
}

// As the hook chooses.
bool Player::worth_recording(const Instruction& op) const {
  const Options& options = engine_->options();
  const Storage* target = written_.size() == 1 ? written_[0] : nullptr;
  return options.evict && op.replayable && !op.outputs.empty() &&
         (!op.backward || options.record_backward || engine_->planned_again()) &&
         (op.writes.empty() || (target && target->producer && target->versions < options.max_versions && !passing_)) &&
         !engine_->too_deep(operands_);
}

void Player::compute(const Instruction& op) {
  const Options& options = engine_->options();
  const bool record = worth_recording(op);
  if (!options.in_place) {
    for (Storage* storage : written_) {
      if (!storage->producer) continue;
      if (old_) engine_->reconsider(*std::exchange(old_, nullptr));
      old_ = engine_->copy_on_write(*storage);
    }
  }
  Bytes all = 0;
  for (const Program::Output& output : op.outputs) all += output.bytes;
  for (const Storage* storage : written_) all += storage->bytes;
  const bool passing = op.backward && !options.record_backward && !record;  // a gradient on its way
  engine_->expect(passing ? Side::high : engine_->side_of(op.cost / static_cast<double>(std::max<Bytes>(all, 1))));

  for (int tries = 0;; ++tries) {
    try {
      allocate(op, blocks_);
      break;
    } catch (const Shortage&) {
      if (!written_.empty() || !options.rescue || tries == 2) throw;
      for (Storage* storage : operands_) engine_->pin(*storage);
      engine_->leave(operands_);
      tries == 0 ? engine_->pack() : engine_->compact();
      engine_->enter(operands_);
      for (Storage* storage : operands_) engine_->unpin(*storage);
    }
  }

  outputs_.clear();
  Storage* target = record && !written_.empty() ? written_[0] : nullptr;
  if (target) outputs_.push_back(target);
  for (std::size_t i = 0, fresh = 0; i < op.outputs.size(); ++i) {
    if (op.outputs[i].alias >= 0) continue;
    Home& home = bind(blocks_[fresh++], op.outputs[i].bytes);
    made_.push_back(&home);
    if (op.outputs[i].bytes > options.tiny) outputs_.push_back(home.storage);
  }
  blocks_.clear();
  if (!record || outputs_.empty()) {
    overwritten();
    return;
  }
  edges_.clear();
  if (target) {
    if (!old_) old_ = engine_->split(*target);
    edges_.push_back(old_);
  }
  for (Storage* storage : operands_) {
    if (storage != target) edges_.push_back(storage);
  }
  engine_->record(const_cast<Instruction*>(&op), op.cost, edges_, outputs_, target ? InPlace::on_old : InPlace::no);
  if (old_) engine_->reconsider(*std::exchange(old_, nullptr));
}

// Blocks for all outputs that have bytes of their own, as a kernel asks for them. All or none.
void Player::allocate(const Instruction& op, std::vector<Block*>& blocks) {
  blocks.clear();
  try {
    for (const Program::Output& output : op.outputs) {
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

// What was recomputable and has been overwritten is a source now.
void Player::overwritten() {
  for (Storage* storage : written_) {
    if (storage->producer) engine_->reconsider(*engine_->split(*storage));
  }
  if (old_) engine_->reconsider(*std::exchange(old_, nullptr));
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

// Nothing is written: any page will do.
Transfer Player::finish(std::uint32_t ticket, bool wait, Seconds now) {
  Transport& transport = transports_[ticket - 1];
  Stream& stream = *transport.stream;
  run_until(stream, now);
  if (transport.end < 0 && wait) {
    std::erase(stream.waiting, ticket);
    transport.end = stream.free = std::max(stream.free, now) + transport.seconds;
  }
  if (transport.end < 0 || (transport.end > now && !wait)) return {};
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
  for (const Program::Output& output : instruction.outputs) {
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
