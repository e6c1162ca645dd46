// What a driver calls. Each function takes the lock and calls the class that does the work. The
// file is long because the interface is wide. The end of a scope is in retire.cpp.
#include "engine/engine.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/reserve.h"

namespace coop {

namespace {
constexpr std::size_t kPortion = 16;  // records released after each op: more than one op makes
}

Engine::Engine(const Options& options, Driver& driver)
    : options_(options),
      driver_(driver),
      journal_(clock_, options.checks >= 2),
      checks_(options.checks, [this] { inspect(); }),
      arena_(options.budget, options.alignment, options.placement),
      ledger_(options_, arena_),
      cost_(options_, stamps_),
      lineage_(
          stamps_, cost_, [this](Storage& storage) { forget(storage); }, [this](Op& op) { driver_.drop(op); }),
      forecast_(options_, clock_),
      blocks_(driver_, clock_, arena_, ledger_, journal_, cost_, forecast_, trails_, checks_, counts_),
      commits_(arena_, ledger_, journal_, lineage_, blocks_, trails_, counts_),
      transfers_(options_, driver_, gate_, clock_, arena_, ledger_, journal_, cost_, forecast_, blocks_, checks_,
                 counts_),
      room_(options_, clock_, arena_, ledger_, journal_, cost_, lineage_, blocks_, transfers_, checks_, counts_),
      walk_(options_, driver_, gate_, clock_, arena_, ledger_, journal_, lineage_, forecast_, blocks_, transfers_,
            room_, commits_, checks_, counts_),
      ahead_(options_, clock_, arena_, ledger_, journal_, cost_, forecast_, transfers_, room_) {
  Reserve::install();
}

Engine::~Engine() { lineage_.sweep(SIZE_MAX); }

// --- from inside kernels -----------------------------------------------------------------------------------------------

Block* Engine::allocate(Bytes bytes) {
  Reserve::require();
  const Lock lock(gate_);
  const Side wished = room_.side();
  Block* block = room_.take(bytes, bytes <= options_.tiny && wished == Side::high ? Side::low : wished);
  ++counts_.allocations;
  return block;
}

void Engine::free(Bytes offset) {
  const Lock lock(gate_);
  Block* block = arena_.raw_at(offset);
  if (!block) return checks_.broken("free of an address that was not handed out");
  blocks_.give_back(block);
  checks_.at_event_of_death();
}

Block* Engine::raw_block(Bytes offset) const {
  const Lock lock(gate_);
  return arena_.raw_at(offset);
}

// --- around an op ------------------------------------------------------------------------------------------------------

void Engine::enter(std::span<Storage* const> inputs) {
  Reserve::require();
  const Lock lock(gate_);
  if (checks_.level()) checks_.throw_if_broken();
  bool ready = true;
  for (Storage* input : inputs) {
    input->last_access = clock_.now;
    ready = ready && input->resident();
  }
  if (options_.swap) {
    forecast_.op_begins(inputs);
    for (Storage* input : inputs) {
      if (forecast_.used(*input)) ++counts_.prefetch_hits;
      transfers_.reprice(*input);  // the link's speed may have changed, or the tier may have room again
    }
  }
  if (!ready) walk_.bring_back(inputs);
  for (Storage* input : inputs) ledger_.lock(*input);
  blocks_.footprint().begin();
}

void Engine::hold(std::span<Storage* const> storages) {
  Reserve::require();
  const Lock lock(gate_);
  walk_.bring_back(storages);
  for (Storage* storage : storages) ledger_.lock(*storage);
}

void Engine::leave(std::span<Storage* const> inputs) {
  const Lock lock(gate_);
  for (Storage* input : inputs) {
    ledger_.unlock(*input);
    lineage_.reconsider(*input);
  }
}

void Engine::arrived(std::span<Storage* const> storages) {
  const Lock lock(gate_);
  for (Storage* storage : storages) {
    ledger_.unlock(*storage);
    if (storage->held && storage->block) driver_.attach(*storage);  // pointers to it are watched again
    lineage_.reconsider(*storage);
  }
}

void Engine::overwriting(std::span<Storage* const> written) {
  if (!transfers_.ever()) return;
  const Lock lock(gate_);
  transfers_.overwriting(written);
}

void Engine::ran(Seconds cost) {
  const Lock lock(gate_);
  ++counts_.ops;
  clock_.ran += cost;
  clock_.now += cost;
  commits_.tend();
  if (options_.swap || transfers_.any()) {
    forecast_.op_ended();
    ahead_.tend(cost);
  }
  journal_.explain(EventKind::ran, nullptr, nullptr, cost);
  if (!walk_.any()) lineage_.sweep(kPortion);
  if (checks_.level() >= 3 && !retired_) room_.compact(true);
}

// --- storages ----------------------------------------------------------------------------------------------------------

Storage* Engine::bind(Bytes offset, Bytes bytes, void* handle) {
  const Lock lock(gate_);
  Block* block = arena_.raw_at(offset);
  if (!block) return nullptr;
  Storage* storage = lineage_.make_storage(bytes);
  storage->engine = this;
  storage->handle = handle;
  storage->held = handle != nullptr;
  storage->claims.driver_refers = !storage->held;
  storage->last_access = clock_.now;
  blocks_.bind(*storage, block);
  transfers_.reprice(*storage);
  forecast_.born(*storage);
  journal_.note(EventKind::bind, *storage);
  if (handle) driver_.attach(*storage);  // under the lock: once that is open, the storage may be moved
  return storage;
}

Storage* Engine::bind_foreign(Bytes bytes, void* handle) {
  const Lock lock(gate_);
  Storage* storage = lineage_.make_storage(bytes);
  storage->engine = this;
  storage->handle = handle;
  storage->foreign = true;
  return storage;
}

void Engine::let_go(Storage& storage) {
  const Lock lock(gate_);
  {
    const Ledger::Change change(ledger_, storage);
    storage.held = false;
  }
  storage.claims.pins -= std::exchange(storage.claims.program_pins, 0);
  got_cheaper(storage);
  storage.handle = nullptr;
  end_exposure(storage);
  if (storage.absent()) blocks_.let_go_absent(storage);
  journal_.note(EventKind::die, storage);
  if (storage.producer && storage.block) {
    // While nothing is evicted, nothing will be recomputed soon: free the block now, so that memory
    // which is warm in the caches is used again. A plan has its own use for the place.
    const bool pressed = !blocks_.held_absent().empty();
    const bool keep = storage.claims.wanted || (options_.keep_dead && pressed && !room_.planned());
    if (!keep) blocks_.evict_early(storage);
  }
  commits_.let_go(storage);
  lineage_.reconsider(storage);
  checks_.at_event_of_death();
}

void Engine::reconsider(Storage& storage) {
  const Lock lock(gate_);
  storage.claims.driver_refers = false;
  commits_.consider_orphan(storage);
  lineage_.reconsider(storage);
}

// Called by the lineage when nothing refers to the storage any more.
void Engine::forget(Storage& storage) {
  if (follower_) follower_->forgotten(storage);
  commits_.forgotten(storage);
  transfers_.forget(storage);
  forecast_.forgotten(storage);
  if (storage.block) {
    journal_.note(EventKind::free, storage);
    if (!transfers_.keep_block(storage)) blocks_.free(storage);
  }
  driver_.drop(storage);
}

void Engine::end_exposure(Storage& storage) {
  if (std::exchange(storage.claims.exposed, false)) --storage.claims.locks;
}

// --- lineage -----------------------------------------------------------------------------------------------------------

void Engine::expect_back(Storage& storage, bool returns) {
  const Lock lock(gate_);
  commits_.expect_back(storage, returns);
}

void Engine::replace(Storage& gone, Storage& same) {
  const Lock lock(gate_);
  if (!gone.source() || !same.source() || same.uses || gone.bytes != same.bytes || gone.absent() || same.absent()) {
    throw std::logic_error("only a source that nothing was made from can replace another");
  }
  lineage_.replace(gone, same);
  commits_.expect_back(gone, false);
  lineage_.reconsider(gone);
}

void Engine::record(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
                    InPlace in_place) {
  const Lock lock(gate_);
  Op* op = commits_.record(recipe, cost, inputs, outputs, in_place);
  const Bytes footprint = blocks_.footprint().most();
  Bytes fresh = 0;
  for (const Storage* output : outputs) fresh += output && output->block ? output->block->bytes : 0;
  op->scratch = in_place != InPlace::no ? footprint : footprint > fresh ? footprint - fresh : 0;
  ++counts_.recorded_ops;
  // Bytes that were never set may come back different. Only checks need to know.
  const bool unset = std::any_of(inputs.begin(), inputs.end(), [](const Storage* input) { return input->unset; });
  for (Storage* output : outputs) {
    if (!output) continue;
    output->unset = in_place != InPlace::from_scratch && (output->unset || unset);
    got_cheaper(*output);
    journal_.note(EventKind::record, *output, cost);
  }
  if (op->output_bytes) {
    room_.density().add(op->cost_from_scratch() / static_cast<double>(op->output_bytes), op->output_bytes);
  }
  checks_.at_event();
}

bool Engine::too_deep(std::span<Storage* const> inputs) const {
  return std::any_of(inputs.begin(), inputs.end(), [&](const Storage* input) {
    return input->producer && input->producer->depth + 1 >= options_.max_depth;
  });
}

// No dead records are swept here: the driver is about to enter an op, and one of its operands may
// be a foreign storage that only dead records read.
void Engine::before_overwrite(std::span<Storage* const> storages) {
  // A dependent of one of them may be another of them. It then becomes a source, and its own
  // dependents are next.
  for (bool again = true; again;) {
    again = false;
    for (Storage* storage : storages) {
      if (!storage->source() || storage->uses == 0) continue;
      Reserve::require();
      const Lock lock(gate_);
      again = walk_.commit_dependents(*storage) || again;
    }
    again = again && storages.size() > 1;
  }
}

// The copy in the tier belongs to the old version.
Storage* Engine::split_unlocked(Storage& storage) {
  Storage* old = commits_.split(storage);
  transfers_.hand_over(storage, *old);
  if (follower_) follower_->renamed(storage, *old);
  return old;
}

Storage* Engine::copy_on_write(Storage& storage) {
  Reserve::require();
  const Lock lock(gate_);
  transfers_.wait_for(storage);
  Block* copy = room_.take(storage.bytes, room_.side());  // the storage is locked: it does not leave
  blocks_.footprint().begin();
  driver_.copy(copy->offset, storage.block->offset, storage.bytes);
  Storage* old = split_unlocked(storage);
  blocks_.pass_on(storage, *old);
  blocks_.bind(storage, copy);
  ledger_.became_source(storage);
  journal_.note(EventKind::bind, *old);
  journal_.note(EventKind::bind, storage);
  driver_.attach(storage);
  transfers_.reprice(storage);
  transfers_.reprice(*old);
  ledger_.count();
  return old;
}

Storage* Engine::split(Storage& storage) {
  const Lock lock(gate_);
  Storage* old = split_unlocked(storage);
  transfers_.reprice(storage);
  blocks_.became_absent(*old);
  return old;
}

void Engine::commit(Storage& storage) {
  Reserve::require();
  const Lock lock(gate_);
  if (!storage.producer) return;
  walk_.bring_back(storage);
  commits_.commit(storage);
}

void Engine::materialise(Storage& storage) {
  pin(storage);
  unpin(storage);
}

void Engine::pin(Storage& storage) {
  Reserve::require();
  const Lock lock(gate_);
  storage.last_access = clock_.now;
  walk_.bring_back(storage);
  ++storage.claims.pins;
}

void Engine::unpin(Storage& storage) {
  const Lock lock(gate_);
  if (!storage.claims.pins) throw std::logic_error("unpin of a storage that is not pinned");
  --storage.claims.pins;
  lineage_.reconsider(storage);
}

void Engine::pin_held(Storage& storage) {
  pin(storage);
  const Lock lock(gate_);
  ++storage.claims.program_pins;
}

void Engine::unpin_held(Storage& storage) {
  {
    const Lock lock(gate_);
    if (!storage.claims.program_pins) throw std::logic_error("unpin of a storage that is not pinned");
    --storage.claims.program_pins;
  }
  unpin(storage);
}

void Engine::expose(Storage& storage) {
  if (storage.claims.exposed || storage.open) return;
  if (storage.foreign) {
    const Lock lock(gate_);
    walk_.commit_dependents(storage);
    storage.open = true;
    return;
  }
  commit(storage);
  const Lock lock(gate_);
  walk_.bring_back(storage);
  ++storage.claims.pins;
  try {
    walk_.commit_dependents(storage);  // rule 5: others may write to it from now on
  } catch (...) {
    --storage.claims.pins;
    throw;
  }
  --storage.claims.pins;
  transfers_.wait_for(storage);
  transfers_.drop_copy(storage);
  storage.claims.exposed = true;
  ++storage.claims.locks;
}

// --- a plan ------------------------------------------------------------------------------------------------------------

void Engine::follow(std::shared_ptr<const Planned> plan) {
  const Lock lock(gate_);
  if (follower_) follower_->want_nothing();
  room_.follow(nullptr);
  follower_.reset();
  if (!plan) return;
  follower_ = std::make_unique<Follower>(options_, arena_, journal_, lineage_, forecast_, blocks_, transfers_, walk_,
                                         std::move(plan));
  room_.follow(follower_.get());
}

void Engine::before_planned_slow(std::string_view op) {
  const Lock lock(gate_);
  follower_->before(op);
  checks_.at_event();
}

void Engine::after_planned_slow(std::span<Storage* const> made, std::span<Storage* const> written) {
  const Lock lock(gate_);
  follower_->after(made, written);
  checks_.at_event();
}

std::string Engine::why_lost() const {
  const Lock lock(gate_);
  return follower_ ? follower_->why() : std::string();
}

// --- when there is no room ---------------------------------------------------------------------------------------------

Bytes Engine::largest_run() const {
  const Lock lock(gate_);
  return room_.largest_run();
}

void Engine::pack() {
  const Lock lock(gate_);
  room_.pack();
}

void Engine::compact() {
  const Lock lock(gate_);
  room_.compact(true);
  ledger_.restart_top();
}

Bytes Engine::enough_for(std::span<Storage* const> inputs) {
  const Lock lock(gate_);
  return std::max(walk_.enough_for(inputs), walk_.enough_so_far());
}

Bytes Engine::enough_beyond(std::span<Storage* const> inputs) {
  const Lock lock(gate_);
  return ledger_.top() + commits_.sources_to_come(inputs);
}

void Engine::overdraw(Bytes bytes) {
  const Lock lock(gate_);
  if (overdraft_) throw std::logic_error("rule 1: a second overdraft");
  overdraft_ = bytes / options_.alignment * options_.alignment;
  arena_.extend(overdraft_);
  ledger_.overdraw(true);
}

bool Engine::end_overdraft() {
  const Lock lock(gate_);
  if (!overdraft_) return true;
  room_.compact(true);
  if (!arena_.shrink(overdraft_)) return false;
  overdraft_ = 0;
  ledger_.overdraw(false);
  return true;
}

bool Engine::empty() const {
  const Lock lock(gate_);
  return arena_.free_bytes() == arena_.capacity();
}

// --- everything --------------------------------------------------------------------------------------------------------

void Engine::freeze() {
  gate_.lock();
  transfers_.finish_all();
}

void Engine::thaw() { gate_.unlock(); }

Stats Engine::stats() const {
  const Lock lock(gate_);
  Stats stats = counts_;
  stats.budget = options_.budget;
  stats.op_seconds = clock_.ran;
  stats.in_use = ledger_.in_use();
  stats.cached = ledger_.cached();
  stats.peak = ledger_.peak();
  stats.free = arena_.free_bytes();
  stats.largest_free = arena_.largest_free();
  stats.sources = ledger_.sources();
  stats.floor = ledger_.floor();
  stats.storages = lineage_.storages();
  stats.records = lineage_.ops();
  stats.exact_costs = cost_.exact_costs();
  stats.union_find_costs = cost_.union_find_costs();
  if (follower_) {
    stats.planned_steps = follower_->steps();
    stats.planned_ops = follower_->ops();
    stats.plan_losses = follower_->losses();
  }
  stats.hidden_seconds = std::max(counts_.transfer_seconds - counts_.waited_seconds, 0.0);
  stats.fragmentation = room_.fragmentation();
  return stats;
}

std::vector<Event> Engine::take_events() {
  const Lock lock(gate_);
  return journal_.take();
}

void Engine::check() {
  const Lock lock(gate_);
  checks_.throw_if_broken();
  inspect();
}

void Engine::throw_if_broken() {
  const Lock lock(gate_);
  checks_.throw_if_broken();
}

void Engine::inspect() const {
  arena_.check(clock_.ran);
  ledger_.check();
  for (const Block* block = arena_.first(); block; block = block->next) {
    if (block->storage) lineage_.check(*block->storage);
  }
  for (const Storage* storage : blocks_.held_absent()) {
    lineage_.check(*storage);
    if (storage->resident()) throw std::logic_error("rule 2: a storage is both resident and evicted");
  }
}

}  // namespace coop
