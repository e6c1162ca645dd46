// Rematerialising: which ops, in which order, under which pins.
//
// The walk is depth first, and of several absent inputs the one that takes the most room comes first. What it has brought
// back for an op that still waits is pinned. Everything else that the missing ops will read is wanted: it leaves only when
// nothing else can make room, and is brought back once more; then its op waits too. So nothing is recomputed twice where memory allows. Where
// there is no room even so, memory is packed, then emptied, and a simple schedule takes over if there is room for it
// (frugal.cpp). If not, the walk goes on and holds on to nothing but the operands of the op that runs.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine.h"

namespace coop {

namespace {

constexpr Seconds kPatience = 1;  // with a recomputation that goes round in circles
constexpr std::size_t kYielding =
    2;  // times as much as was missing: from then on, what is wanted stays if anything else can leave

Storage* storage_of(Storage* storage) { return storage; }
Storage* storage_of(const Edge& edge) { return edge.storage; }

// The one that takes the most room to bring back: the fewer others are kept meanwhile, the better.
template <typename List>
Storage* hungriest_absent(const List& list) {
  Storage* found = nullptr;
  for (const auto& item : list) {
    Storage* storage = storage_of(item);
    if (storage->evicted() && (!found || need_of(*storage) > need_of(*found))) found = storage;
  }
  return found;
}

}  // namespace

// Afterwards all goals are resident, and stay so for as long as the lock is held. They stay storages meanwhile, even if
// they are let go: it is the caller who reconsiders them.
void Engine::bring_back(std::span<Storage* const> goals, Lock& lock) {
  struct Frame {
    Storage* goal;
    std::size_t kept;  // what it holds on to lies behind this index
  };
  std::vector<Op*> order;
  if (std::none_of(goals.begin(), goals.end(), [](const Storage* goal) { return goal->evicted(); })) return;
  lineage_.missing(goals, order);
  lineage_.find_needs(order);
  const auto want = [](Op* op, bool on) {
    op->waiting = on;
    for (std::uint32_t i = 0; i < op->inputs_count; ++i) op->inputs()[i].storage->wanted += on ? 1 : -1;
  };
  ++walks_;
  for (Op* op : order) want(op, true);
  for (Storage* goal : goals) ++goal->wanted;
  std::vector<Frame> frames;
  std::vector<Storage*> kept;
  const auto release_from = [&](std::size_t from) {
    while (kept.size() > from) {
      --kept.back()->pins;
      kept.pop_back();
    }
  };
  const auto let_all_go = [&] {
    --walks_;
    yielding_ = true;
    release_from(0);
    for (Op* op : order) {
      if (op->waiting) want(op, false);
    }
    for (Storage* goal : goals) --goal->wanted;
  };
  bool holding_on = true;  // to what was brought back
  bool frugal = false;
  int rescues = 0;
  // What is evicted on the way may be needed twice, and that must end.
  const std::size_t all =
      order.size() + std::count_if(goals.begin(), goals.end(), [](const Storage* goal) { return goal->page != 0; });
  const std::size_t many = 64 + 32 * all, too_many = 64 + 256 * all;
  const std::size_t few = kYielding * all, doubtful = 16 + 4 * all;
  const Seconds start = now_;
  std::size_t replays = 0;
  try {
    for (;;) {
      if (frames.empty()) {
        Storage* goal = hungriest_absent(goals);
        if (!goal) break;
        frames.push_back({goal, kept.size()});
      }
      const auto [goal, from] = frames.back();
      if (goal->resident()) {
        release_from(from);
        frames.pop_back();
        if (holding_on) {
          ++goal->pins;
          kept.push_back(goal);
        }
        continue;
      }
      Op* op = goal->page ? nullptr : goal->producer;
      if (!op && !goal->page) lose(*goal);  // it was lost before, and what is wanted was made from it
      if (op && !op->waiting) {             // what it makes has left meanwhile
        order.push_back(op);
        want(op, true);
      }
      Storage* absent = op ? hungriest_absent(std::span(op->inputs(), op->inputs_count)) : nullptr;
      if (absent) {
        frames.push_back({absent, kept.size()});
        continue;
      }
      ++replays;
      if (replays > too_many || (replays > many && now_ - start > kPatience)) {
        throw thrashing(arena_.round(goal->bytes));
      }
      if (replays == doubtful && options_.rescue) {  // it may go round in circles
        release_from(0);
        for (Frame& frame : frames) frame.kept = 0;
        compact_unlocked(true);
        frugal = fits(goals);
        if (frugal) break;
        continue;
      }
      yielding_ = replays <= few;
      release_from(from);
      for (std::uint32_t i = 0; op && i < op->inputs_count; ++i) {
        ++op->inputs()[i].storage->pins;
        kept.push_back(op->inputs()[i].storage);
      }
      try {
        if (!op) {
          miss(*goal);
          rescues = 0;
          continue;
        }
        replay(*op, lock);
      } catch (const Shortage&) {
        if (!options_.rescue || rescues == 3) throw;
        switch (++rescues) {
          case 1: pack_unlocked(); break;
          case 2: compact_unlocked(false); break;
          default:
            holding_on = false;
            release_from(0);
            for (Frame& frame : frames) frame.kept = 0;
            compact_unlocked(true);
            frugal = fits(goals);
        }
        if (frugal) break;
        release_from(frames.back().kept);
        continue;  // and once more: an op in place may have used up its input, or it has left
      }
      rescues = 0;
      release_from(from);
      if (op->waiting) want(op, false);
      if (options_.keep_dead) continue;
      for (std::uint32_t i = 0; i < op->inputs_count; ++i) {
        Storage* input = op->inputs()[i].storage;
        if (!input->held && !input->wanted) evict_eagerly(*input);
      }
    }
    if (frugal) {
      for (Op* op : order) {
        if (op->waiting) want(op, false);
      }
      bring_back_frugally(goals, lock);
    }
  } catch (Shortage& shortage) {
    let_all_go();
    if (options_.rescue) shortage.enough = std::max(shortage.enough, enough_unlocked(goals));
    if (shortage.in_circles && shortage.enough <= options_.budget) shortage.enough = options_.budget + shortage.needed;
    throw;
  } catch (...) {
    let_all_go();
    throw;
  }
  let_all_go();
}

// Inputs are resident, and pinned once by the caller.
void Engine::replay(Op& op, Lock& lock) {
  for (std::uint32_t i = 0; i < op.inputs_count; ++i) {
    if (op.inputs()[i].storage->evicted()) throw std::logic_error("rule 3: an operand left before its op ran");
  }
  const Side before = side_;
  side_ = side_of(op.cost / static_cast<double>(std::max<Bytes>(op.output_bytes, 1)));
  std::vector<Block*> produced(op.outputs_count, nullptr);
  Block* target = nullptr;
  const std::uint32_t from = op.in_place == InPlace::on_old ? 1 : 0;
  for (std::uint32_t i = from; i < op.inputs_count; ++i) lock_operand(*op.inputs()[i].storage);
  const auto unlock_operands = [&] {
    side_ = before;
    for (std::uint32_t i = from; i < op.inputs_count; ++i) unlock_operand(*op.inputs()[i].storage);
  };
  Seconds cost = 0;
  try {
    if (op.in_place != InPlace::no) produced[0] = target = target_of(op);
    lock.unlock();
    cost = driver_.replay(op, target, produced.data());
    lock.lock();
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (target) give_back(target);
    unlock_operands();
    throw;
  }
  unlock_operands();
  now_ += cost;
  counts_.recompute_seconds += cost;
  ++counts_.replays;
  for (std::uint32_t i = 0; i < op.inputs_count; ++i) op.inputs()[i].storage->last_access = now_;
  for (std::uint32_t i = 0; i < op.outputs_count; ++i) {
    Block* block = produced[i];
    if (!block) continue;
    Storage* output = op.outputs()[i];
    if (output && output->transit == Transit::in) finish(*output, true);
    if (!output || output->resident()) {  // nobody's any more, or still here
      give_back(block);
    } else {
      if (block->bytes < output->bytes) {
        broken("rule 4: a replay gave less than the op did");
        give_back(block);
        continue;
      }
      raw_ -= block->bytes;
      place(*output, block);
    }
  }
  for (std::uint32_t i = 0; foresees() && i < op.inputs_count; ++i) expect_use(*op.inputs()[i].storage);
  for (std::uint32_t i = 0; i < op.outputs_count; ++i) {
    if (Storage* output = op.outputs()[i]; output && output->evicted()) {
      throw std::logic_error("rule 4: a replay did not bring its output back");
    }
  }
  if (!broken_.empty()) throw std::logic_error(std::exchange(broken_, {}));
  check_at_event();
}

// The bytes an in-place op works on: the old version's own if nobody else waits for it, else a copy of them. As a raw
// block either way.
Block* Engine::target_of(Op& op) {
  if (op.in_place == InPlace::from_scratch) return take(op.target_bytes, side_);
  Storage& old = *op.inputs()[0].storage;
  const bool others_wait = old.pins > 1 || old.wanted > (op.waiting ? 1 : 0);
  if (!others_wait && old.locks == 0 && old.producer && old.block && !old.held && old.transit == Transit::none) {
    Block* block = old.block;
    cached_ -= block->bytes;
    old.block = nullptr;
    arena_.unsettle(block);
    raw_ += block->bytes;
    left(old);
    note_use();
    note(EventKind::bind, nullptr, block->offset, block->bytes);
    return block;
  }
  ++old.locks;
  Block* block = nullptr;
  try {
    block = take(old.bytes, side_);
  } catch (...) {
    --old.locks;
    throw;
  }
  --old.locks;
  driver_.copy(block->offset, old.block->offset, old.bytes);
  return block;
}

void Engine::place(Storage& storage, Block* block) {
  if (storage.page) outside_.erase(&storage);
  arena_.settle(block, &storage);
  storage.block = block;
  storage.last_access = now_;
  lineage_.restored(storage);
  ++counts_.rematerialisations;
  if (options_.checks >= 2 && storage.digest && storage.defined()) {
    if (driver_.digest(block->offset, storage.bytes) != storage.digest) {
      broken("rule 4: a storage came back with other bytes");
    }
  }
  note(EventKind::restore, storage);
  if (storage.held) {
    held_evicted_.erase(&storage);
    driver_.attach(storage);
    trails_.consider(storage);
  } else if (storage.producer) {
    cached_ += block->bytes;
  }
}

}  // namespace coop
