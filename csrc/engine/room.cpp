#include "engine/room.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/window.h"

namespace coop {

namespace {

constexpr double kForgetting = 0.998;  // decay of the price with each search
constexpr double kJump = 2;            // the price rises at most by this factor at a time

class Watch {
 public:
  Seconds seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Room::Room(const Options& options, const Clock& clock, Arena& arena, Ledger& ledger, Journal& journal, Cost& cost,
           Lineage& lineage, Blocks& blocks, Transfers& transfers, Checks& checks, Stats& counts)
    : options_(options),
      clock_(clock),
      arena_(arena),
      ledger_(ledger),
      journal_(journal),
      cost_(cost),
      lineage_(lineage),
      blocks_(blocks),
      transfers_(transfers),
      checks_(checks),
      counts_(counts),
      policy_(make_policy(options)) {}

Block* Room::take(Bytes bytes, Side side) {
  if (ledger_.overdrawn()) [[unlikely]]
    side = Side::packed;
  Block* block = plan_ ? plan_->block_for(bytes, side) : nullptr;
  if (!block) block = arena_.allocate(bytes, side);
  if (!block) block = make(bytes, side == Side::packed ? Side::low : side);
  blocks_.handed_out(*block);
  return block;
}

SearchContext Room::context(Side side) {
  return {.options = options_,
          .arena = arena_,
          .cost = cost_,
          .side = side,
          .clock = clock_,
          .read_rate = transfers_.in().rate,
          .price = last_,
          .found = last_,
          .may_take_wanted = may_take_wanted_ && !planned()};
}

// Called when no hole is large enough: makes one.
Block* Room::make(Bytes bytes, Side side) {
  const Watch all;
  const Bytes needed = arena_.round(bytes);
  SearchContext context = this->context(side);
  Block* block = nullptr;
  ++counts_.searches;
  while (!block) {
    tell_prices(context, needed);
    const Watch search;
    const Run run = needed <= arena_.capacity() ? find_room(*policy_, context, needed) : Run();
    const Seconds seconds = search.seconds();
    counts_.search_seconds += seconds;
    journal_.note(EventKind::search, nullptr, 0, needed, seconds);
    if (run) {
      Block* hole = clear(run, context);
      if (hole && hole->bytes >= needed) {
        block = arena_.take(hole, needed, side);
      } else if (!hole) {
        block = arena_.allocate(bytes, side);  // another thread may have made room meanwhile
      }
    } else if (transfers_.any()) {  // blocks of transfers cannot be evicted until they are done
      transfers_.finish_all();
      context.clock = clock_;
      block = arena_.allocate(bytes, side);
    } else if (!transfers_.retry_refused()) {
      journal_.note(EventKind::shortage, nullptr, 0, needed);
      seconds_ += all.seconds();
      throw shortage(needed);
    }
  }
  remember(context);
  seconds_ += all.seconds();
  return block;
}

void Room::tell_prices_slow(const SearchContext& context, Bytes needed) {
  journal_.note(EventKind::price, nullptr, 0, needed);
  for (const Block* block = arena_.first(); block; block = block->next) {
    const Storage* storage = block->storage;
    if (!storage) continue;
    const bool swaps = storage->swappable();
    journal_.note(swaps ? EventKind::price : EventKind::idle, *storage, swaps ? context.cost_of_swapping(*storage) : 0,
                  storage->idle(context.clock));
  }
}

// Remembers what the search paid.
void Room::remember(const SearchContext& context) {
  const double before = last_.per_byte;
  last_ = context.found;
  if (context.wanted_too) last_.per_byte = before;  // scores of wanted storages are no prices
  price_ *= kForgetting;
  if (last_.known() && !context.wanted_too) {
    price_ = std::max(price_, price_ > 0 ? std::min(last_.per_byte, kJump * price_) : last_.per_byte);
  }
  fragmentation_sum_ += static_cast<double>(arena_.free_bytes()) / static_cast<double>(arena_.capacity());
  ++fragmentation_count_;
}

double Room::fragmentation() const {
  return fragmentation_count_ ? fragmentation_sum_ / static_cast<double>(fragmentation_count_) : 0;
}

Block* Room::clear(Run run, SearchContext& context) {
  std::vector<Storage*> leaving, staying;
  run.each([&](Block& block) {
    if (Storage* storage = block.storage) (context.moves_aside(*storage) ? staying : leaving).push_back(storage);
  });
  if (transfers_.write_back(leaving, lineage_) != Transfers::Written::yes) return nullptr;
  Block* hole = run.first;
  for (Storage* storage : leaving) hole = blocks_.evict(*storage);
  for (Storage* storage : staying) {
    if (Block* below = storage->block->prev; below && below->free()) hole = blocks_.slide(*storage);
  }
  checks_.at_event();
  return hole;
}

void Room::pack() {
  transfers_.finish_all();
  for (Block* block = arena_.first(); block; block = block->next) {
    if (!block->storage || !block->storage->movable()) continue;
    if (Block* below = block->prev; below && below->free()) blocks_.slide(*block->storage);
  }
  checks_.at_event();
}

void Room::compact(bool wanted_too) {
  std::vector<Storage*> leaving;
  do {
    transfers_.finish_all();
    leaving.clear();
    tell_prices(context(Side::low), 0);
    for (Block* block = arena_.first(); block; block = block->next) {
      if (block->storage && block->storage->evictable(wanted_too)) leaving.push_back(block->storage);
    }
  } while (transfers_.write_back(leaving, lineage_) == Transfers::Written::disturbed);
  for (Storage* storage : leaving) {
    if (storage->producer || storage->copy.page) blocks_.evict(*storage);
  }
  pack();
}

Bytes Room::largest_run() const {
  return coop::largest_run(arena_, options_.rescue || (options_.move && options_.windows()));
}

Shortage Room::shortage(Bytes needed) const {
  Shortage shortage;
  shortage.needed = needed;
  shortage.budget = options_.budget;
  shortage.kept = ledger_.sources();
  shortage.working = std::max(ledger_.working(), needed);
  shortage.swaps = options_.swap;
  shortage.largest = largest_run();
  Bytes fixed = 0;
  for (const Block* block = arena_.first(); block; block = block->next) {
    const Storage* storage = block->storage;
    if (block->free() || (storage && storage->evictable())) continue;
    fixed += block->bytes;
    (!storage                  ? shortage.scratch
     : storage->claims.exposed ? shortage.exposed
     : storage->claims.locks   ? shortage.locked
     : storage->source()       ? shortage.sources
                               : shortage.pinned) += block->bytes;
  }
  const bool fits = fixed + needed <= arena_.capacity();
  shortage.enough = std::max(fixed + needed, fits ? options_.budget + needed - shortage.largest : 0);
  return shortage;
}

}  // namespace coop
