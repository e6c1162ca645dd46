// The engine's surface: what a driver calls around each op, and the bookkeeping of storages.
#include "engine.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "reserve.h"

namespace coop {

namespace {
constexpr std::size_t kPortion = 16;  // records released with each op: more than one op makes, so none pile up
}

Engine::Engine(const Options& options, Driver& driver)
    : options_(options),
      driver_(driver),
      arena_(options.budget, options.alignment, options.placement),
      lineage_(
          options_, [this](Storage& storage) { forget(storage); }, [this](Op& op) { driver_.drop(op); }),
      policy_(make_policy(options_)),
      out_{options.swap_out},
      in_{options.swap_in} {
  Reserve::install();
}

Engine::~Engine() { lineage_.sweep(SIZE_MAX); }

// --- from inside kernels -----------------------------------------------------------------------------------------------

Block* Engine::allocate(Bytes bytes) {
  Reserve::require();
  const Lock lock(mutex_);
  const Side side = bytes <= options_.tiny ? Side::low : side_.load(std::memory_order_relaxed);
  Block* block = take(bytes, side);
  ++counts_.allocations;
  return block;
}

// A raw block.
Block* Engine::take(Bytes bytes, Side side) {
  if (overdraft_) [[unlikely]]
    side = Side::low;
  Block* block = follower_ ? follower_->place(bytes, side) : nullptr;
  if (!block) block = arena_.allocate(bytes, side);
  if (!block) block = make_room(bytes, side);
  raw_ += block->bytes;
  raw_most_ = std::max(raw_most_, raw_ - carried_);
  note_use();
  note(EventKind::place, nullptr, block->offset, block->bytes);
  return block;
}

void Engine::give_back(Block* block) {
  spoil(block->offset, block->bytes);
  raw_ -= block->bytes;
  note(EventKind::free, nullptr, block->offset, block->bytes);
  arena_.release(block);
}

void Engine::note_use() {
  if (overdraft_) [[unlikely]] {
    for (const Block* block = arena_.last(); block; block = block->prev) {
      if (block->state == Block::State::free) continue;
      top_ = std::max(top_, block->end());
      break;
    }
    return;
  }
  if (const Bytes now = in_use(); now > peak_) peak_ = now;
  const Bytes working = operands_ + raw_ - carried_;
  if (working > working_) working_ = working;
  if (const Bytes now = (options_.swap ? 0 : sources_) + working; now > floor_) floor_ = now;
}

void Engine::free(Bytes offset) {
  const Lock lock(mutex_);
  Block* block = arena_.raw_at(offset);
  if (!block) return broken("free of an address that was not handed out");
  give_back(block);
  check_where_none_may_throw();
}

// --- around an op ------------------------------------------------------------------------------------------------------

void Engine::lock_operand(Storage& storage) {
  const bool can_leave = storage.producer || options_.swap;
  if (storage.locks++ == 0 && can_leave && !storage.foreign) {
    storage.charged = true;
    operands_ += storage.bytes;
  }
}

void Engine::unlock_operand(Storage& storage) {
  if (--storage.locks == 0 && std::exchange(storage.charged, false)) operands_ -= storage.bytes;
}

void Engine::enter(std::span<Storage* const> inputs) {
  if (options_.checks) throw_if_broken();
  Reserve::require();
  Lock lock(mutex_);
  bool ready = true;
  for (Storage* input : inputs) {
    input->last_access = now_;
    ready = ready && input->resident();
  }
  if (options_.swap) entering(inputs);
  if (!ready) bring_back(inputs, lock);
  for (Storage* input : inputs) lock_operand(*input);
  raw_before_ = raw_most_ = raw_ - carried_;
}

void Engine::hold(std::span<Storage* const> storages) {
  Reserve::require();
  Lock lock(mutex_);
  bring_back(storages, lock);
  for (Storage* storage : storages) lock_operand(*storage);
}

void Engine::leave(std::span<Storage* const> inputs) {
  const Lock lock(mutex_);
  for (Storage* input : inputs) {
    unlock_operand(*input);
    lineage_.reconsider(*input);
  }
}

void Engine::ran(Seconds cost) {
  const Lock lock(mutex_);
  ++counts_.ops;
  counts_.op_seconds += cost;
  now_ += cost;
  // Only between ops: any thread may let go, and what the running op reads or overwrites must not change under its hands.
  if (!orphans_.empty()) {
    orphans_.tend([this](Storage& source, std::size_t most) { return settle_if_cheap(source, most); });
  }
  trails_.tend([this](Storage& storage) { return cut_if_long(storage); });
  if (options_.swap || !transfers_.empty()) tend_transfers(cost);
  if (!walks_) lineage_.sweep(kPortion);
  if (options_.checks >= 3) shake();
}

// --- storages ----------------------------------------------------------------------------------------------------------

Storage* Engine::bind(Bytes offset, Bytes bytes, void* handle) {
  const Lock lock(mutex_);
  Block* block = arena_.raw_at(offset);
  if (!block) return nullptr;
  Storage* storage = lineage_.make_storage(bytes);
  raw_ -= block->bytes;
  arena_.settle(block, storage);
  storage->block = block;
  storage->engine = this;
  storage->handle = handle;
  storage->held = handle != nullptr;
  storage->in_hand = !storage->held;
  storage->last_access = now_;
  sources_ += bytes;
  news_ += bytes;
  price_swap(*storage);
  if (foresees()) {
    history_.born(*storage);
    expect_use(*storage);
  }
  note(EventKind::bind, *storage);
  if (handle) driver_.attach(*storage);  // under the lock: it may be moved as soon as that is open
  return storage;
}

Storage* Engine::bind_hidden(Bytes offset, Bytes bytes) { return bind(offset, bytes, nullptr); }

Storage* Engine::bind_foreign(Bytes bytes, void* handle) {
  const Lock lock(mutex_);
  Storage* storage = lineage_.make_storage(bytes);
  storage->engine = this;
  storage->handle = handle;
  storage->foreign = true;
  return storage;
}

void Engine::let_go(Storage& storage) {
  const Lock lock(mutex_);
  storage.held = false;
  storage.pins -= std::exchange(storage.pinned, 0);
  got_cheaper(storage);
  storage.handle = nullptr;
  set_free(storage);
  if (storage.evicted()) {
    held_evicted_.erase(&storage);
    lineage_.unheld(storage);
  }
  note(EventKind::die, storage);
  if (storage.producer && storage.block) {
    cached_ += storage.block->bytes;
    // While nothing is evicted, nothing will be recomputed soon, and memory that is warm in the caches is used again. A plan
    // has its own use for the place.
    const bool planned = follower_ && follower_->under_way();
    const bool keep = storage.wanted || (options_.keep_dead && !held_evicted_.empty() && !planned);
    if (!keep) evict_eagerly(storage);
  }
  if (storage.source() && storage.uses && storage.block) orphans_.add(storage);
  counts_.looks += trails_.died(storage);
  lineage_.reconsider(storage);
  check_where_none_may_throw();
}

// A source that nobody holds is kept only for what was made from it. Where that is resident and not much larger, or
// where orphans have come to be a good part of all that is in use, it is committed instead, and the source can go: a
// gradient, once the optimizer's moments have been updated with it; a batch, of which only a prediction is left. Returns
// how many ops it looked at.
std::size_t Engine::settle_if_cheap(Storage& source, std::size_t most) {
  constexpr Bytes kGoodPart = 8;
  std::vector<Storage*> dependents;
  const std::size_t seen = lineage_.held_dependents(source, dependents, most);
  counts_.looks += seen;
  if (seen > most) return seen;
  Bytes bytes = 0;
  for (const Storage* dependent : dependents) {
    if (dependent->evicted()) return seen;
    bytes += dependent->bytes;
  }
  const bool many = orphans_.bytes() > in_use() / kGoodPart;
  if (bytes > 2 * source.bytes && !(many && bytes <= orphans_.bytes())) return seen;
  for (Storage* dependent : dependents) commit_resident(*dependent);
  return seen;
}

// Too much would have to run again to bring it back, or is kept for that. What is evicted is considered when it is back.
// Returns how many ops it looked at.
std::size_t Engine::cut_if_long(Storage& storage) {
  if (!storage.held || storage.evicted()) return 0;
  const std::size_t most = Trails::longest(storage.bytes);
  const std::size_t seen = lineage_.trail(storage, most);
  counts_.looks += seen;
  if (seen > most) commit_resident(storage);
  return seen;
}

void Engine::reconsider(Storage& storage) {
  const Lock lock(mutex_);
  storage.in_hand = false;
  if (storage.source() && !storage.held && storage.uses && storage.block) orphans_.add(storage);
  lineage_.reconsider(storage);
}

// Called by the lineage when the last reference to a storage is gone.
void Engine::forget(Storage& storage) {
  if (follower_) follower_->forgotten(storage);
  orphans_.remove(storage);
  trails_.remove(storage);
  if (storage.transit == Transit::in) {  // the page goes when it has been read
    outside_.erase(&storage);
    Underway& transfer = underway(storage);
    transfer.page = std::exchange(storage.page, 0);
    transfer.storage = nullptr;
  }
  drop_page(storage);
  history_.forgotten(storage);
  if (storage.block) {
    note(EventKind::free, storage);
    release_block(storage);
  }
  driver_.drop(storage);
}

Block* Engine::release_block(Storage& storage) {
  Block* block = std::exchange(storage.block, nullptr);
  if (!storage.producer) {
    sources_ -= storage.bytes;
  } else if (!storage.held) {
    cached_ -= block->bytes;
  }
  if (storage.transit == Transit::out && !call_off(storage)) {  // it is the transfer's until that is done
    underway(storage).storage = nullptr;
    storage.transit = Transit::none;
    arena_.unsettle(block);
    raw_ += block->bytes;
    carried_ += block->bytes;
    note(EventKind::place, nullptr, block->offset, block->bytes);
    return block;
  }
  spoil(block->offset, block->bytes);
  return arena_.release(block);
}

// --- lineage -----------------------------------------------------------------------------------------------------------

// An op in place and those whose result it continues: what the bytes as they are now have cost.
static Seconds cost_from_scratch(const Op& op) {
  const Op* before = op.in_place == InPlace::on_old ? op.inputs()->storage->producer : nullptr;
  return before ? op.cost + cost_from_scratch(*before) : op.cost;
}

void Engine::record(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
                    InPlace in_place) {
  const Lock lock(mutex_);
  for (Storage* output : outputs) {
    if (output && output->block) sources_ -= output->bytes;
  }
  Op* op = lineage_.make_op(recipe, cost, inputs, outputs, in_place);
  Bytes fresh = 0;
  for (const Storage* output : outputs) fresh += output && output->block ? output->block->bytes : 0;
  const Bytes most = raw_most_ - raw_before_;
  if (in_place == InPlace::no) {
    op->scratch = most > fresh ? most - fresh : 0;
  } else {
    op->scratch = most;
  }
  ++counts_.recorded_ops;
  // Bytes that nothing has set may come back as any others: only checks want to know.
  const bool unset = std::any_of(inputs.begin(), inputs.end(), [](const Storage* input) { return input->unset; });
  for (Storage* output : outputs) {
    if (!output) continue;
    output->unset = in_place != InPlace::from_scratch && (output->unset || unset);
    got_cheaper(*output);
    note(EventKind::record, *output, cost);
  }
  if (op->output_bytes) classes_.add(cost_from_scratch(*op) / static_cast<double>(op->output_bytes), op->output_bytes);
  check_at_event();
}

bool Engine::too_deep(std::span<Storage* const> inputs) const {
  for (const Storage* input : inputs) {
    if (input->producer && input->producer->depth + 1 >= options_.max_depth) return true;
  }
  return false;
}

void Engine::before_overwrite(std::span<Storage* const> storages) {
  // What depends on one of them may be another of them, and is a source from then on.
  for (bool again = true; again;) {
    again = false;
    for (Storage* storage : storages) {
      if (!storage->source() || storage->uses == 0) continue;
      Reserve::require();
      Lock lock(mutex_);
      again = settle(*storage, lock) || again;
    }
    again = again && storages.size() > 1;
  }
}

// Nothing is swept here: the driver is about to enter an op, and one of its operands may be a foreign storage that only
// dead records read. What dead records would need does not matter. Returns whether there was anything to do.
bool Engine::settle(Storage& source, Lock& lock) {
  std::vector<Storage*> dependents;
  lineage_.held_dependents(source, dependents);
  if (dependents.empty()) return false;
  const auto reconsider_all = [&] {  // some may have been let go meanwhile
    for (Storage* dependent : dependents) lineage_.reconsider(*dependent);
  };
  try {
    bring_back(dependents, lock);
  } catch (...) {
    reconsider_all();
    throw;
  }
  for (Storage* dependent : dependents) commit_resident(*dependent);
  reconsider_all();
  if (options_.checks) {
    dependents.clear();
    lineage_.held_dependents(source, dependents);
    if (!dependents.empty()) throw std::logic_error("rule 5: a source that is still needed would be overwritten");
  }
  return true;
}

Storage* Engine::copy_on_write(Storage& storage) {
  Reserve::require();
  const Lock lock(mutex_);
  still(storage);
  Block* copy = take(storage.bytes, side_);  // the storage is locked: it stays
  raw_ -= copy->bytes;
  raw_most_ = raw_before_;
  driver_.copy(copy->offset, storage.block->offset, storage.bytes);
  Storage* old = lineage_.split(storage);
  old->in_hand = true;
  old->page = std::exchange(storage.page, 0);
  storage.ahead = false;
  if (follower_) follower_->renamed(storage, *old);
  old->block = storage.block;
  old->block->storage = old;
  got_cheaper(*old);
  cached_ += old->block->bytes;
  arena_.settle(copy, &storage);
  storage.block = copy;
  sources_ += storage.bytes;
  if (!options_.swap && std::exchange(storage.charged, false)) operands_ -= storage.bytes;
  note(EventKind::bind, *old);
  note(EventKind::bind, storage);
  driver_.attach(storage);
  price_swap(storage);
  price_swap(*old);
  note_use();
  return old;
}

Storage* Engine::split(Storage& storage) {
  const Lock lock(mutex_);
  Storage* old = lineage_.split(storage);
  old->in_hand = true;
  old->page = std::exchange(storage.page, 0);
  storage.ahead = false;
  if (follower_) follower_->renamed(storage, *old);
  if (!storage.held) cached_ -= storage.block->bytes;
  sources_ += storage.bytes;
  price_swap(storage);
  left(*old);
  return old;
}

void Engine::commit_resident(Storage& storage) {
  if (!storage.producer) return;
  if (storage.block) {
    sources_ += storage.bytes;
    if (!storage.held) cached_ -= storage.block->bytes;
  }
  if (!options_.swap && std::exchange(storage.charged, false)) operands_ -= storage.bytes;
  note_use();
  lineage_.commit(storage);
  ++counts_.commits;
  note(EventKind::commit, storage);
}

void Engine::commit(Storage& storage) {
  Reserve::require();
  Lock lock(mutex_);
  if (!storage.producer) return;
  bring_back(storage, lock);
  commit_resident(storage);
}

void Engine::materialise(Storage& storage) {
  pin(storage);
  unpin(storage);
}

void Engine::pin(Storage& storage) {
  Reserve::require();
  Lock lock(mutex_);
  storage.last_access = now_;
  bring_back(storage, lock);
  ++storage.pins;
}

void Engine::unpin(Storage& storage) {
  const Lock lock(mutex_);
  if (!storage.pins) throw std::logic_error("unpin of a storage that is not pinned");
  --storage.pins;
  lineage_.reconsider(storage);
}

void Engine::pin_held(Storage& storage) {
  pin(storage);
  const Lock lock(mutex_);
  ++storage.pinned;
}

void Engine::unpin_held(Storage& storage) {
  {
    const Lock lock(mutex_);
    if (!storage.pinned) throw std::logic_error("unpin of a storage that is not pinned");
    --storage.pinned;
  }
  unpin(storage);
}

void Engine::expose(Storage& storage) {
  if (storage.exposed || storage.open) return;
  if (storage.foreign) {
    Lock lock(mutex_);
    settle(storage, lock);
    storage.open = true;
    return;
  }
  commit(storage);
  Lock lock(mutex_);
  bring_back(storage, lock);
  ++storage.pins;
  try {
    settle(storage, lock);  // others may write to it from now on: rule 5
  } catch (...) {
    --storage.pins;
    throw;
  }
  --storage.pins;
  still(storage);
  drop_page(storage);
  storage.exposed = true;
  ++storage.locks;
}

// To the lowest hole that it fits into, if that lies below it.
void Engine::lower(Storage& storage) {
  still(storage);
  Block* hole = storage.locks ? nullptr : arena_.allocate(storage.bytes, Side::low);
  if (!hole) return;
  Block* before = storage.block;
  if (hole->offset < before->offset) {
    arena_.settle(hole, &storage);
    storage.block = hole;
    moved(storage, before->offset);
    arena_.release(before);
  } else {
    arena_.release(hole);
  }
}

void Engine::set_free(Storage& storage) {
  if (std::exchange(storage.exposed, false)) --storage.locks;
}

// --- a plan ------------------------------------------------------------------------------------------------------------

void Engine::follow(std::shared_ptr<const Planned> plan) {
  const Lock lock(mutex_);
  if (follower_) follower_->let_go();
  follower_ = plan ? std::make_unique<Follower>(*this, std::move(plan)) : nullptr;
}

void Engine::before_planned_slow(std::string_view op) {
  Lock lock(mutex_);
  follower_->before(op, lock);
  check_at_event();
}

void Engine::after_planned_slow(std::span<Storage* const> made, std::span<Storage* const> written) {
  Lock lock(mutex_);
  follower_->after(made, written, lock);
  check_at_event();
}

std::string Engine::why_lost() const {
  const Lock lock(mutex_);
  return follower_ ? follower_->why() : std::string();
}

// --- everything --------------------------------------------------------------------------------------------------------

Block* Engine::raw_block(Bytes offset) const {
  const Lock lock(mutex_);
  return arena_.raw_at(offset);
}

bool Engine::empty() const {
  const Lock lock(mutex_);
  return arena_.free_bytes() == arena_.capacity();
}

void Engine::freeze() {
  mutex_.lock();
  finish_all(true);
}

void Engine::thaw() { mutex_.unlock(); }

Stats Engine::stats() const {
  const Lock lock(mutex_);
  Stats stats = counts_;
  stats.budget = options_.budget;
  stats.in_use = in_use();
  stats.cached = cached_;
  stats.peak = peak_;
  stats.free = arena_.free_bytes();
  stats.largest_free = arena_.largest_free();
  stats.sources = sources_;
  stats.floor = floor_;
  stats.storages = lineage_.storages();
  stats.records = lineage_.ops();
  stats.exact_costs = lineage_.exact_costs();
  stats.union_find_costs = lineage_.union_find_costs();
  if (follower_) {
    stats.planned_steps = follower_->steps();
    stats.planned_ops = follower_->ops();
    stats.plan_losses = follower_->losses();
  }
  stats.hidden_seconds = std::max(counts_.transfer_seconds - counts_.waited_seconds, 0.0);
  stats.fragmentation = fragmentation_count_ ? fragmentation_sum_ / static_cast<double>(fragmentation_count_) : 0;
  return stats;
}

std::vector<Event> Engine::take_events() {
  const Lock lock(mutex_);
  return std::exchange(events_, {});
}

void Engine::check() {
  throw_if_broken();
  const Lock lock(mutex_);
  check_unlocked();
}

void Engine::check_where_none_may_throw() noexcept {
  try {
    check_at_event();
  } catch (const std::exception& error) {
    broken(error.what());
  }
}

void Engine::broken(const char* rule) noexcept {
  if (broken_.empty()) broken_ = rule;
}

void Engine::throw_if_broken() {
  Lock lock(mutex_);
  if (broken_.empty()) return;
  const std::string rule = std::exchange(broken_, {});
  lock.unlock();
  throw std::logic_error(rule);
}

void Engine::check_unlocked() const {
  arena_.check(counts_.op_seconds);
  Bytes sources = 0, cached = 0, raw = 0;
  for (const Block* block = arena_.first(); block; block = block->next) {
    if (block->state == Block::State::raw) raw += block->bytes;
    if (!block->storage) continue;
    const Storage& storage = *block->storage;
    lineage_.check(storage);
    if (block->bytes < storage.bytes) throw std::logic_error("rule 1: a storage is larger than its block");
    if (storage.source()) {
      sources += storage.bytes;
    } else if (!storage.held) {
      cached += block->bytes;
    }
  }
  for (const Storage* storage : held_evicted_) {
    lineage_.check(*storage);
    if (storage->resident()) throw std::logic_error("rule 2: a storage is both resident and evicted");
  }
  if (sources != sources_ || cached != cached_ || raw != raw_) {
    throw std::logic_error("rule 1: bytes are counted wrongly: sources " + std::to_string(sources) + " / " +
                           std::to_string(sources_) + ", cached " + std::to_string(cached) + " / " +
                           std::to_string(cached_) + ", raw " + std::to_string(raw) + " / " + std::to_string(raw_));
  }
}

}  // namespace coop
