#include "engine/walk.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/schedule.h"
#include "engine/walk_attempt.h"

namespace coop {

Walk::Walk(const Options& options, Driver& driver, Gate& gate, Clock& clock, Arena& arena, Ledger& ledger,
           Journal& journal, Lineage& lineage, Forecast& forecast, Blocks& blocks, Transfers& transfers, Room& room,
           Commits& commits, Checks& checks, Stats& counts)
    : options_(options),
      driver_(driver),
      gate_(gate),
      clock_(clock),
      arena_(arena),
      ledger_(ledger),
      journal_(journal),
      lineage_(lineage),
      forecast_(forecast),
      blocks_(blocks),
      transfers_(transfers),
      room_(room),
      commits_(commits),
      checks_(checks),
      counts_(counts) {}

void Walk::bring_back(std::span<Storage* const> goals) {
  if (std::none_of(goals.begin(), goals.end(), [](const Storage* goal) { return goal->absent(); })) return;
  bool lucky = false;
  try {
    Attempt attempt(*this, goals);
    attempt.run();
    lucky = attempt.lucky();
  } catch (Shortage& shortage) {
    if (options_.rescue) shortage.enough = std::max({shortage.enough, enough_for(goals), enough_so_far_});
    if (shortage.in_circles && shortage.enough <= options_.budget) shortage.enough = options_.budget + shortage.needed;
    throw;
  } catch (const Lost&) {
    // The callers reconsider the goals, but the lost storage may be an input further up.
    Storage* lost = std::exchange(lost_, nullptr);
    if (std::find(goals.begin(), goals.end(), lost) == goals.end()) lineage_.reconsider(*lost);
    throw;
  }
  // It succeeded, but might not the next time. A schedule's budget is certain to be enough.
  if (lucky) enough_so_far_ = std::max(enough_so_far_, enough_for(goals));
}

bool Walk::commit_dependents(Storage& source) {
  std::vector<Storage*> dependents;
  lineage_.held_dependents(source, dependents);
  if (dependents.empty()) return false;
  const auto reconsider_all = [&] {  // the program may have dropped some meanwhile
    for (Storage* dependent : dependents) lineage_.reconsider(*dependent);
  };
  try {
    bring_back(dependents);
  } catch (...) {
    reconsider_all();
    throw;
  }
  for (Storage* dependent : dependents) commits_.commit(*dependent);
  reconsider_all();
  if (checks_.level()) {
    dependents.clear();
    lineage_.held_dependents(source, dependents);
    if (!dependents.empty()) throw std::logic_error("rule 5: a source that is still needed would be overwritten");
  }
  return true;
}

// --- a simple schedule -------------------------------------------------------------------------------------------------

// To be called after everything that can leave has left.
bool Walk::schedule_fits(std::span<Storage* const> goals) const {
  return Schedule(goals, Schedule::From::now, options_.alignment).most() <= arena_.free_bytes();
}

// To be called when nothing but the goals is wanted.
void Walk::run_schedule(std::span<Storage* const> goals) {
  // Reads a swapped storage. True: it is resident, and pinned. False: its copy was not valid, and
  // it has to be recomputed.
  const auto read = [&](Storage& storage, Pins& pins) {
    if (storage.absent()) {
      if (!storage.copy.page && !storage.producer) throw_lost(storage);
      if (!storage.copy.page) return false;
      room_.compact(true);
      read_now(storage);
    }
    if (storage.resident()) pins.add(storage);  // also if it was resident: reading the next could evict it
    return storage.resident();
  };
  for (bool again = true; std::exchange(again, false);) {
    const Schedule schedule(goals, Schedule::From::now, options_.alignment);
    Pins kept;  // each until the last op that reads it has run; goals, to the end
    for (Storage* goal : goals) {
      if (goal->resident()) kept.add(*goal);
    }
    std::unordered_map<const Storage*, std::uint32_t> done;
    for (Op* op : schedule.order()) {
      Pins inputs;
      for (const Edge& edge : op->edges()) {
        if (edge.storage->resident()) inputs.add(*edge.storage);
      }
      for (const Edge& edge : op->edges()) {
        if (edge.storage->absent() && !read(*edge.storage, inputs)) again = true;
      }
      if (again) break;
      for (const Edge& edge : op->edges()) {
        if (++done[edge.storage] == schedule.uses(*edge.storage)) kept.remove(*edge.storage);
      }
      room_.compact(true);
      replay(*op, Side::packed);
      for (Storage* output : op->results()) {
        if (output && schedule.uses(*output) > done[output]) kept.add(*output);
      }
    }
    for (Storage* goal : goals) {
      if (!again && !read(*goal, kept)) again = true;
    }
  }
}

Bytes Walk::enough_for(std::span<Storage* const> goals) {
  Bytes stuck = commits_.sources_to_come(goals);
  for (const Block* block = arena_.first(); block; block = block->next) {
    const Storage* storage = block->storage;
    if (block->state == Block::State::raw) stuck += block->bytes;
    if (!storage) continue;
    const Claims& claims = storage->claims;
    const bool elsewhere = claims.locks && std::find(goals.begin(), goals.end(), storage) == goals.end();
    const bool leaves = storage->producer || storage->swappable();
    if (claims.exposed || claims.pins || elsewhere || !leaves) stuck += block->bytes;
  }
  const Schedule schedule(goals, Schedule::From::scratch, options_.alignment);
  return stuck - ledger_.carried() + schedule.most_with_scratch();
}

// --- one op ------------------------------------------------------------------------------------------------------------

// The inputs are resident, and the caller has pinned each of them once.
void Walk::replay(Op& op, Side side) {
  for (const Edge& edge : op.edges()) {
    if (edge.storage->absent()) throw std::logic_error("rule 3: an operand left before its op ran");
  }
  const Side before = room_.side();
  room_.expect(side);
  std::vector<Block*> produced(op.outputs_count, nullptr);
  Block* target = nullptr;
  const std::span<Edge> read = op.edges().subspan(op.in_place == InPlace::on_old ? 1 : 0);
  for (const Edge& edge : read) ledger_.lock(*edge.storage);
  const auto unlock_operands = [&] {
    room_.expect(before);
    for (const Edge& edge : read) ledger_.unlock(*edge.storage);
  };
  Seconds cost = 0;
  try {
    if (op.in_place != InPlace::no) produced[0] = target = target_of(op);
    gate_.open_while([&] { cost = driver_.replay(op, target, produced.data()); });
  } catch (...) {
    if (target) blocks_.give_back(target);
    unlock_operands();
    throw;
  }
  unlock_operands();
  clock_.now += cost;
  counts_.recompute_seconds += cost;
  ++counts_.replays;
  for (const Edge& edge : op.edges()) edge.storage->last_access = clock_.now;
  for (std::uint32_t i = 0; i < op.outputs_count; ++i) {
    Block* block = produced[i];
    if (!block) continue;
    Storage* output = op.outputs()[i];
    const bool waits = output && output->copy.transit == Transit::in;
    if (waits) transfers_.wait_for(*output);
    if (!output || output->resident()) {  // dead, or still resident
      blocks_.give_back(block);
    } else if (block->bytes < output->bytes) {
      checks_.broken("rule 4: a replay gave less than the op did");
      blocks_.give_back(block);
    } else {
      blocks_.restore(*output, block, nullptr);
    }
    if (waits) lineage_.reconsider(*output);  // the program may have dropped it meanwhile
  }
  for (const Edge& edge : op.edges()) forecast_.read_again(*edge.storage);
  for (const Storage* output : op.results()) {
    if (output && output->absent()) throw std::logic_error("rule 4: a replay did not bring its output back");
  }
  checks_.throw_if_broken();
  checks_.at_event();
}

// The raw block that an in-place op works on: the old version's own if nobody else waits for it,
// else a copy of it.
Block* Walk::target_of(Op& op) {
  if (op.in_place == InPlace::from_scratch) return room_.take(op.target_bytes, room_.side());
  Storage& old = *op.inputs()[0].storage;
  const bool others_wait = old.claims.pins > 1 || old.claims.wanted > (op.waiting ? 1 : 0);
  if (!others_wait && old.movable() && old.producer && !old.held) {
    Block* block = blocks_.make_raw(old);
    blocks_.became_absent(old);
    ledger_.count();
    journal_.note(EventKind::bind, *block);
    return block;
  }
  ++old.claims.locks;
  Block* block = nullptr;
  try {
    block = room_.take(old.bytes, room_.side());
  } catch (...) {
    --old.claims.locks;
    throw;
  }
  --old.claims.locks;
  driver_.copy(block->offset, old.block->offset, old.bytes);
  return block;
}

// --- what is outside ---------------------------------------------------------------------------------------------------

void Walk::fetch(Storage& storage) {
  if (storage.copy.transit != Transit::none) return;
  ++storage.claims.pins;
  Block* block = nullptr;
  try {
    block = room_.take(storage.bytes, Side::low);
  } catch (...) {
    --storage.claims.pins;
    throw;
  }
  --storage.claims.pins;
  transfers_.begin_in(storage, block);
}

void Walk::read_now(Storage& storage) {
  if (storage.copy.transit == Transit::none) {
    ++counts_.prefetch_misses;
    forecast_.missed(storage);
    fetch(storage);
  }
  transfers_.wait_for(storage);
}

void Walk::throw_lost(Storage& storage) {
  transfers_.set_lost(storage);
  if (storage.held) abandon(storage);
  storage.claims.driver_refers = false;
  lost_ = &storage;
  throw Lost(
      "a tensor of " + std::to_string(storage.bytes) +
      " bytes that had been swapped out did not come back as it was, and it cannot be recomputed: its memory, or its "
      "file, was changed or could not be read. It is lost; the other tensors are not. Tip: go on from the last "
      "checkpoint, with another place to swap to");
}

void Walk::abandon(Storage& storage) {
  driver_.abandon(storage);
  storage.held = false;
  storage.handle = nullptr;
  storage.claims.driver_refers = true;
  blocks_.let_go_absent(storage);
}

}  // namespace coop
