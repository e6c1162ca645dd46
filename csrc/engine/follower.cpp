// Everything here runs under the engine's lock, which is open while a kernel runs again.
#include "engine/follower.h"

#include <algorithm>
#include <utility>

namespace coop {

void Planned::node(std::string name, bool silent, std::vector<Output> outputs, std::vector<Place> room) {
  for (const Output& output : outputs) values = std::max(values, output.value + 1);
  nodes.push_back({std::move(name), silent, false, std::move(outputs), std::move(room)});
}

void Planned::step(Kind kind, std::uint32_t number, std::uint32_t node, std::vector<Place> room) {
  if (kind == Kind::compute) nodes.at(number).again = true;
  if (kind == Kind::out) {  // record it too: the page may be lost
    for (Node& maker : nodes) {
      for (const Output& output : maker.outputs) maker.again = maker.again || output.value == number;
    }
  }
  if (node < nodes.size()) {
    nodes[node].before.push_back({kind, number, std::move(room)});
  } else {
    nodes.back().after.push_back({kind, number, std::move(room)});
  }
}

namespace {

// The name without overload and without the `_` of an in-place op. PyTorch's composite functions
// choose between add and add_ by whether autograd records.
std::string_view base_of(std::string_view op) {
  std::string_view base = op.substr(0, op.find('.'));
  if (base.ends_with('_')) base.remove_suffix(1);
  return base;
}

bool same(std::string_view planned, std::string_view op) {
  return planned == op || (!op.empty() && base_of(planned) == base_of(op));
}

}  // namespace

Follower::Follower(const Options& options, Arena& arena, Journal& journal, Lineage& lineage, Forecast& forecast,
                   Blocks& blocks, Transfers& transfers, Walk& walk, std::shared_ptr<const Planned> plan)
    : tiny_(options.tiny),
      arena_(arena),
      journal_(journal),
      lineage_(lineage),
      forecast_(forecast),
      blocks_(blocks),
      transfers_(transfers),
      walk_(walk),
      plan_(std::move(plan)),
      storages_(plan_->values, nullptr),
      wanted_(plan_->values, false),
      requests_of_(plan_->nodes.size() + 1) {
  journal_.note(EventKind::plan_adopted, nullptr, 0, 0, static_cast<double>(plan_->nodes.size()));
  while (first_ + 1 < plan_->nodes.size() && plan_->nodes[first_].silent) ++first_;
}

void Follower::before(std::string_view op) {
  if (running_) lose_plan("an op that failed");
  unplanned_.clear();
  pass_silent();
  if (!same(plan_->nodes[at_].name, op)) {
    if (!at_) return;
    if (!same(plan_->nodes[first_].name, op)) {
      unplanned_ = op;
      return;
    }
    lose_plan(op);
    pass_silent();
  }
  if (!welcomed_) welcome();
  const Planned::Node& node = plan_->nodes[at_];
  carry_out(node.before);
  node_ = at_;
  requests_.clear();
  targets_.clear();
  for (const Planned::Output& output : node.outputs) {
    if (output.over < 0) {
      targets_.push_back(nullptr);
    } else {
      const auto old = static_cast<std::uint32_t>(output.over);
      targets_.push_back(storages_[old]);
      unwant(old);
    }
  }
  room_ = node.room;
  running_ = true;
}

void Follower::after(std::span<Storage* const> made, std::span<Storage* const> written) {
  if (!running_) {
    // An unplanned op that makes and changes nothing, such as a view, does not matter.
    if (!unplanned_.empty() && !(written.empty() && made.empty())) lose_plan(unplanned_);
    return;
  }
  running_ = false;
  room_.clear();
  const Planned::Node& node = plan_->nodes[at_];
  std::size_t next = 0;
  // Results have memory of their own, unless the op has overwritten something that the plan does
  // not know.
  const std::span<Storage* const> from = made.empty() ? written : made;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const Planned::Output& output = node.outputs[i];
    if (targets_[i] && std::find(written.begin(), written.end(), targets_[i]) != written.end()) {
      bind(output.value, targets_[i]);
      continue;
    }
    while (next < from.size() && !from[next]) ++next;
    const Bytes bytes = next < from.size() ? arena_.round(from[next]->bytes) : 0;
    if (bytes == output.bytes) {
      bind(output.value, from[next++]);
    } else if (output.bytes > arena_.round(1)) {  // smaller outputs may have no bytes at all
      lose_plan(node.name);
      return;
    }
  }
  learn();
  ++ops_;
  carry_out(node.after);
  if (++at_ == plan_->nodes.size()) end_step();
}

// Storages from before the step, such as a batch, are sources to the plan, even if they can be
// recomputed: they stay as long as possible. They are numbered after the plan's own values, and
// moved out of the way of the planned places.
void Follower::welcome() {
  welcomed_ = true;
  for (Block* block = arena_.first(); block; block = block->next) {
    Storage* storage = block->storage;
    if (!storage || !storage->held || !storage->producer || storage->plan_value) continue;
    storages_.push_back(nullptr);
    wanted_.push_back(false);
    bind(static_cast<std::uint32_t>(storages_.size() - 1), storage);
  }
  for (std::size_t value = plan_->values; value < storages_.size(); ++value) {
    if (Storage* storage = storages_[value]) transfers_.wait_for(*storage);
    if (Storage* storage = storages_[value]) blocks_.lower(*storage);
  }
}

// Skips the nodes for which the driver runs no op, and carries out their steps.
void Follower::pass_silent() {
  std::size_t passed = 0;
  while (plan_->nodes[at_].silent && passed++ < plan_->nodes.size()) {
    carry_out(plan_->nodes[at_].before);
    carry_out(plan_->nodes[at_].after);
    if (++at_ == plan_->nodes.size()) end_step();
  }
}

// A step that cannot be carried out is left to the policy.
void Follower::carry_out(const std::vector<Planned::Step>& steps) {
  for (const auto& [kind, number, room] : steps) {
    room_ = room;
    try {
      switch (kind) {
        case Planned::Kind::compute: compute(number); break;
        case Planned::Kind::free: free(number); break;
        case Planned::Kind::out:
          if (Storage* storage = storages_[number];
              storage && storage->producer && storage->block && !storage->claims.locks) {
            transfers_.begin_out(*storage);
          }
          break;
        case Planned::Kind::in:
          node_ = plan_->nodes.size();  // not a node: nothing is learned from its requests
          requests_.clear();
          if (Storage* storage = storages_[number]; storage && storage->absent()) {
            if (!storage->copy.page) {
              walk_.bring_back(*storage);
            } else {
              walk_.fetch(*storage);
              forecast_.reads_ahead(*storage, true);
            }
          }
          want(number);
          break;
      }
    } catch (const Shortage&) {
    } catch (const Lost&) {  // the op that needs it will fail with this
    }
  }
  room_.clear();
}

// A kernel asks for its outputs and, before and in between, for scratch. The plan does not know the
// pieces of scratch, and one may be as large as an output. Which request was for which output is
// learned from the node's first run. Scratch does not take the places of outputs.
Block* Follower::block_for(Bytes bytes, Side side) {
  if (room_.empty() || bytes <= tiny_) return nullptr;
  bytes = arena_.round(bytes);
  const auto at = [&](const Planned::Place& room) {
    const Bytes behind = room.offset + room.bytes;
    return behind <= arena_.capacity() ? arena_.allocate_at(arena_.capacity() - behind, room.bytes) : nullptr;
  };
  const std::vector<std::int64_t>& known = requests_of_[node_];
  const std::int64_t value = requests_.size() < known.size() ? known[requests_.size()] : Planned::kScratch;
  Block* found = nullptr;
  for (const Planned::Place& room : room_) {
    const bool meant = known.empty() || (room.value == value && value != Planned::kScratch);
    if (meant && room.bytes == bytes && (found = at(room))) break;
  }
  if (!found) {
    std::vector<Block*> reserved;
    for (const Planned::Place& room : room_) {
      if (room.value == Planned::kScratch) continue;
      if (Block* block = at(room)) reserved.push_back(block);
    }
    for (const Planned::Place& room : room_) {
      if (room.value == Planned::kScratch && (found = inside(room, bytes))) break;
    }
    if (!found) found = arena_.allocate(bytes, side);
    for (Block* block : reserved) arena_.release(block);
  }
  requests_.push_back({bytes, found ? found->offset : SIZE_MAX / 2, Planned::kScratch});
  return found;
}

// A piece of a planned place for scratch: at its beginning, or directly behind another piece.
Block* Follower::inside(const Planned::Place& room, Bytes bytes) {
  const Bytes behind = room.offset + room.bytes;
  if (behind > arena_.capacity()) return nullptr;
  const Bytes begin = arena_.capacity() - behind, end = begin + room.bytes;
  const auto from = [&](Bytes offset) {
    return offset >= begin && offset + bytes <= end ? arena_.allocate_at(offset, bytes) : nullptr;
  };
  Block* found = from(begin);
  for (std::size_t i = 0; i < requests_.size() && !found; ++i) found = from(requests_[i].offset + requests_[i].bytes);
  return found;
}

// Learns which request was for which of the node's outputs.
void Follower::learn() {
  std::vector<std::int64_t>& known = requests_of_[node_];
  if (!known.empty()) return;
  known.assign(requests_.size(), Planned::kScratch);
  for (const Planned::Place& room : plan_->nodes[node_].room) {
    if (room.value == Planned::kScratch) continue;
    const Storage* storage = storages_[static_cast<std::size_t>(room.value)];
    std::size_t i = requests_.size();
    while (storage && storage->block && i > 0 && requests_[i - 1].offset != storage->block->offset) --i;
    if (!storage || !storage->block || i == 0) {
      known.clear();  // learn from a later run
      return;
    }
    known[i - 1] = room.value;
  }
}

void Follower::compute(std::uint32_t number) {
  const Planned::Node& node = plan_->nodes[number];
  node_ = number;
  requests_.clear();
  for (const Planned::Output& output : node.outputs) {
    if (output.over >= 0) unwant(static_cast<std::uint32_t>(output.over));
  }
  for (const Planned::Output& output : node.outputs) {
    if (Storage* storage = storages_[output.value]; storage && storage->absent()) walk_.bring_back(*storage);
  }
  for (const Planned::Output& output : node.outputs) want(output.value);
}

void Follower::free(std::uint32_t value) {
  unwant(value);
  Storage* storage = storages_[value];
  if (!storage) return;
  if (storage->copy.transit == Transit::out) {  // complete its copy first
    transfers_.wait_for(*storage);
    lineage_.reconsider(*storage);  // the program may have dropped it meanwhile
    if (storages_[value] != storage) return;
  }
  if (!storage->evictable(false)) return;
  if (!storage->producer && !storage->copy.page) return;
  if (storage->held) {
    blocks_.evict(*storage);
  } else {
    blocks_.evict_early(*storage);
  }
}

void Follower::bind(std::uint32_t value, Storage* storage) {
  unwant(value);
  if (Storage* before = storages_[value]) before->plan_value = 0;
  storages_[value] = nullptr;
  if (!storage) return;
  if (storage->plan_value) {
    unwant(storage->plan_value - 1);
    storages_[storage->plan_value - 1] = nullptr;
  }
  storages_[value] = storage;
  storage->plan_value = value + 1;
  want(value);
}

void Follower::want(std::uint32_t value) {
  Storage* storage = storages_[value];
  if (!storage || wanted_[value] || (storage->absent() && storage->copy.transit != Transit::in)) return;
  wanted_[value] = true;
  ++storage->claims.wanted;
}

void Follower::unwant(std::uint32_t value) {
  if (!wanted_[value]) return;
  wanted_[value] = false;
  Storage* storage = storages_[value];
  --storage->claims.wanted;
  lineage_.reconsider(*storage);  // this may forget the storage
}

void Follower::renamed(Storage& storage, Storage& old) {
  if (!storage.plan_value) return;
  const std::uint32_t value = storage.plan_value - 1;
  const bool wanted = wanted_[value];
  if (wanted) {
    --storage.claims.wanted;
    wanted_[value] = false;
  }
  storages_[value] = &old;
  old.plan_value = std::exchange(storage.plan_value, 0);
}

void Follower::forgotten(Storage& storage) {
  if (!storage.plan_value) return;
  storages_[storage.plan_value - 1] = nullptr;
  wanted_[storage.plan_value - 1] = false;
  storage.plan_value = 0;
}

void Follower::want_nothing() {
  running_ = false;
  room_.clear();
  at_ = 0;
  for (std::uint32_t value = 0; value < storages_.size(); ++value) {
    unwant(value);
    if (Storage* storage = std::exchange(storages_[value], nullptr)) storage->plan_value = 0;
  }
  welcomed_ = false;
  storages_.resize(plan_->values);
  wanted_.resize(plan_->values);
}

void Follower::lose_plan(std::string_view op) {
  ++losses_;
  journal_.note(EventKind::plan_lost, nullptr, 0, 0, static_cast<double>(at_));
  why_ = "op " + std::to_string(at_) + " of the plan is " + plan_->nodes[at_].name + ", and the program ran " +
         std::string(op);
  if (op == plan_->nodes[at_].name) why_ += " with other sizes";
  want_nothing();
}

void Follower::end_step() {
  ++steps_;
  want_nothing();
}

}  // namespace coop
