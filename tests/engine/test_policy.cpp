// Policies on hand-made arenas: the known defects of published code, and brute force over
// everything a policy may choose. The file is long because all policies share the brute force.
#include <cmath>
#include <limits>
#include <optional>

#include "check.h"
#include "engine/lineage.h"
#include "engine/policy.h"
#include "engine/window.h"

using namespace coop;

namespace {

enum class Kind { free, held, dead, source, pinned, locked, raw };

struct Item {
  Kind kind;
  Bytes bytes;
  Seconds cost = 1;
  Seconds last_access = 0;
  Seconds around = 0;  // what is evicted around it, where the cost model asks
};

// An arena filled with the given blocks, in that order, with an alignment of one byte.
class Stage {
 public:
  Stage(const Options& options, const std::vector<Item>& items)
      : options_(options),
        arena_(total(items), 1, options.placement),
        cost_(options_, stamps_),
        lineage_(
            stamps_, cost_, [](Storage&) {}, [](Op&) {}),
        context{.options = options_, .arena = arena_, .cost = cost_, .clock = {100, 100}} {
    for (const Item& item : items) blocks.push_back(arena_.allocate(item.bytes, Side::low));
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Item& item = items[i];
      if (item.kind == Kind::raw) continue;
      if (item.kind == Kind::free) {
        blocks[i] = arena_.release(blocks[i]);
        continue;
      }
      Storage* storage = lineage_.make_storage(item.bytes);
      storage->block = blocks[i];
      storage->held = item.kind != Kind::dead;
      storage->last_access = item.last_access;
      if (item.kind == Kind::locked) storage->claims.locks = 1;
      if (item.kind == Kind::pinned) storage->claims.pins = 1;
      arena_.occupy(blocks[i], storage);
      if (item.kind != Kind::source)
        lineage_.make_op(nullptr, item.cost, {}, std::vector<Storage*>{storage}, InPlace::no);
      got_cheaper(*storage);
      if (options.cost == CostModel::exact) {
        storage->price.around = item.around;
        storage->price.epoch = 1;  // as if it had just been found
      }
      storages_.push_back(storage);
    }
    arena_.check();
  }
  ~Stage() {
    for (Storage* storage : storages_) {
      storage->held = false;
      storage->claims.pins = storage->claims.locks = 0;
      lineage_.reconsider(*storage);
    }
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  Policy& policy() { return *policy_; }
  Run choose(Bytes needed) { return policy_->choose(context, needed); }
  const Arena& arena() const { return arena_; }

 private:
  static Bytes total(const std::vector<Item>& items) {
    Bytes sum = 0;
    for (const Item& item : items) sum += item.bytes;
    return sum;
  }
  const Options options_;
  Arena arena_;
  Stamps stamps_;
  Cost cost_;
  Lineage lineage_;
  const std::unique_ptr<Policy> policy_ = make_policy(options_);
  std::vector<Storage*> storages_;

 public:
  SearchContext context;
  std::vector<Block*> blocks;
};

Options options(const std::string& kind = "coop") {
  Options chosen;
  chosen.policy = kind;
  chosen.cost = CostModel::own;
  return chosen;
}

// --- brute force -----------------------------------------------------------------------------------------------------------

struct Worth {
  double cost;
  Bytes gain;
};

std::optional<Worth> worth(SearchContext& context, const Block& block, bool may_move, Seconds horizon) {
  if (block.state == Block::State::free) return Worth{0, block.bytes};
  Storage* storage = block.storage;
  if (!storage || storage->claims.locks) return std::nullopt;
  const auto bytes = static_cast<double>(block.bytes);
  const double moving = bytes / context.options.copy_bandwidth / std::max(horizon, kShortest);
  if (storage->producer && !storage->claims.pins) {
    const Seconds stale = std::max(context.clock.now - storage->last_access, kShortest);
    const double leaving = storage->held ? context.cost.projected(*storage) / stale : 0;
    if (!may_move || !(leaving > moving + 4 * context.price.per_byte * bytes)) return Worth{leaving, block.bytes};
  }
  if (!may_move) return std::nullopt;
  return Worth{moving, 0};
}

double value_of(SearchContext& context, Run run, bool may_move, Seconds horizon, Bytes& gain) {
  double cost = 0;
  gain = 0;
  for (const Block* block = run.first;; block = block->next) {
    const auto part = worth(context, *block, may_move, horizon);
    CHECK(part.has_value());  // a wall inside the run
    cost += part->cost;
    gain += part->gain;
    if (block == run.last) break;
  }
  return context.options.per_byte ? cost / static_cast<double>(gain) : cost;
}

// Least value over all runs that are large enough; per byte, over those that no block can be left
// out of at either end. Infinite if there is none.
double least_value(SearchContext& context, Bytes needed, bool may_move, Seconds horizon) {
  double least = std::numeric_limits<double>::infinity();
  for (Block* first = context.arena.first(); first; first = first->next) {
    for (Block* last = first; last; last = last->next) {
      const auto end = worth(context, *last, may_move, horizon);
      if (!end) break;
      Bytes gain = 0;
      const double value = value_of(context, {first, last}, may_move, horizon, gain);
      if (gain < needed) continue;
      const bool minimal = gain - worth(context, *first, may_move, horizon)->gain < needed && gain - end->gain < needed;
      if (context.options.per_byte && !minimal) continue;
      least = std::min(least, value);
    }
  }
  return least;
}

std::vector<Item> random_items(check::Random& random, std::uint64_t most = 24) {
  std::vector<Item> items;
  for (std::uint64_t i = random.between(1, most); i; --i) {
    const std::uint64_t what = random.below(100);
    Item item{Kind::held, random.between(1, 20), static_cast<Seconds>(random.between(1, 1000)) / 1e5,
              static_cast<Seconds>(random.below(100))};
    if (random.chance(5)) item.last_access = 100;  // used just now
    if (random.chance(50)) item.around = static_cast<Seconds>(random.below(1000)) / 1e5;
    item.kind = what < 20   ? Kind::free
                : what < 70 ? Kind::held
                : what < 80 ? Kind::dead
                : what < 88 ? Kind::source
                : what < 92 ? Kind::pinned
                : what < 96 ? Kind::locked
                            : Kind::raw;
    if (item.kind == Kind::free && !items.empty() && items.back().kind == Kind::free) item.kind = Kind::held;
    items.push_back(item);
  }
  return items;
}

}  // namespace

TEST(the_last_window_is_shrunk_from_the_left) {
  for (const bool per_byte : {false, true}) {
    const check::Context context("per_byte", per_byte);
    Options chosen = options();
    chosen.per_byte = per_byte;
    Stage stage(chosen, {{Kind::held, 4, 100}, {Kind::held, 4, 100}, {Kind::held, 8, 1}});
    const Run run = stage.choose(8);
    CHECK_EQUAL(run.first, stage.blocks[2]);
    CHECK_EQUAL(run.last, stage.blocks[2]);
  }
}

TEST(a_staleness_of_zero_is_no_reason_for_inf_or_nan_or_a_false_shortage) {
  for (const std::string kind : {"coop", "dtr", "dte", "lru"}) {
    const check::Context context("policy", kind);
    Stage all_fresh(options(kind), {{Kind::held, 4, 1, 100}, {Kind::held, 4, 2, 100}, {Kind::held, 4, 0, 100}});
    CHECK(all_fresh.choose(4).first != nullptr);
    CHECK(std::isfinite(all_fresh.context.found.staleness));
    // A fresh storage enters and leaves the window before an old one: nothing may be left of it in
    // the sum.
    Stage mixed(options(kind), {{Kind::held, 8, 100, 100}, {Kind::held, 8, 100, 100}, {Kind::held, 8, 1, 0}});
    CHECK_EQUAL(mixed.choose(8).first, mixed.blocks[2]);
    Stage whole(options(), {{Kind::held, 8, 100, 100}, {Kind::held, 8, 1, 0}});
    const Run run = whole.choose(16);
    CHECK(run.first == whole.blocks[0] && run.last == whole.blocks[1]);
  }
}

TEST(the_window_is_the_cheapest_of_all_runs) {
  for (const bool per_byte : {false, true}) {
    for (const bool move : {false, true}) {
      check::Random random(per_byte * 2 + move + 1);
      int found = 0, none = 0;
      for (int round = 0; round < 4000; ++round) {
        const check::Context a("per_byte", per_byte), b("move", move), c("round", round);
        Options chosen = options();
        chosen.cost = random.chance(50) ? CostModel::exact : CostModel::own;
        chosen.per_byte = per_byte;
        chosen.move = move;
        chosen.copy_bandwidth = random.chance(50) ? 1e12 : 1e3;  // moves are nearly free, or dear
        Stage stage(chosen, random_items(random, round % 40 ? 24 : 200));
        // The same again, somewhat later: what the first search has found out of the arena's parts
        // still counts, or not.
        for (int again = 0; again < 3; ++again) {
          const Seconds horizon = stage.context.price.staleness = random.chance(50) ? 0 : 10;
          if (random.chance(50)) stage.context.price.per_byte = std::pow(10.0, -static_cast<double>(random.below(8)));
          const bool all_may_leave = std::isinf(stage.context.price.per_byte);
          const Bytes needed = stage.arena().largest_free() + random.between(1, 60);
          const double least = least_value(stage.context, needed, move, horizon);
          const Run run = stage.choose(needed);
          CHECK_EQUAL(run.first != nullptr, std::isfinite(least));
          if (all_may_leave) CHECK_EQUAL(largest_run(stage.arena(), move) >= needed, std::isfinite(least));
          if (!run.first) {
            ++none;
            continue;
          }
          ++found;
          Bytes gain = 0;
          const double value = value_of(stage.context, run, move, horizon, gain);
          CHECK(gain >= needed);
          CHECK_NEAR(value, least);
          stage.context.clock.now += static_cast<Seconds>(random.below(40)) / 10;
        }
      }
      CHECK(found > 1000 && none > 100);
    }
  }
}

TEST(spare_storages_are_found_from_where_the_last_were_and_from_the_end_the_request_belongs_to) {
  std::vector<Item> items;
  for (int i = 0; i < 20; ++i) {
    items.push_back({Kind::held, 4, 1, 90});
    items.push_back({Kind::dead, 4});
  }
  Stage stage(options(), items);
  Policy& policy = stage.policy();
  const auto take = [&](Side side) {
    stage.context.side = side;
    const Run run = policy.choose(stage.context, 4);
    CHECK_EQUAL(run.first, run.last);
    CHECK(!run.first->storage->held);
    run.first->storage->claims.locks = 1;  // taken
    return run.first->offset;
  };
  Bytes low = take(Side::low), high = take(Side::high);
  for (int i = 0; i < 8; ++i) {
    const Bytes next_low = take(Side::low), next_high = take(Side::high);
    CHECK(next_low > low && next_high < high);
    low = next_low;
    high = next_high;
  }
  CHECK(low < high);
}

TEST(a_dear_block_that_passed_through_the_window_leaves_no_dust_in_its_sum) {
  // A product of a second, used just now, scores 1e9; microseconds that were used long ago score
  // 1e-8. Each window shares a block with the one before, so the dear one is added to and taken
  // from a sum that lives on.
  Options chosen = options();
  chosen.per_byte = false;
  Stage stage(chosen, {{Kind::held, 4, 1, 100},
                       {Kind::held, 4, 1.2e-6, 0},
                       {Kind::held, 4, 1.3e-6, 0},
                       {Kind::held, 4, 1.1e-6, 0},
                       {Kind::held, 4, 1.2e-6, 0},
                       {Kind::held, 4, 1.4e-6, 0}});
  const Run run = stage.choose(8);
  CHECK(run.first == stage.blocks[3] && run.last == stage.blocks[4]);
}

TEST(a_movable_source_is_a_wall_only_when_moving_is_off) {
  const std::vector<Item> items{{Kind::held, 4, 1, 0}, {Kind::source, 2}, {Kind::held, 4, 1, 0}};
  {
    Options chosen = options();
    chosen.move = true;
    Stage open(chosen, items);
    const Run run = open.choose(8);
    CHECK(run.first == open.blocks[0] && run.last == open.blocks[2]);
    CHECK_EQUAL(largest_run(open.arena(), true), 8u);
    chosen.move = false;
    Stage walled(chosen, items);
    CHECK(walled.choose(8).first == nullptr);
    CHECK_EQUAL(walled.choose(4).first, walled.blocks[0]);
    CHECK_EQUAL(largest_run(walled.arena(), false), 4u);
  }
  // A locked one always is.
  Options chosen = options();
  std::vector<Item> locked = items;
  locked[1].kind = Kind::locked;
  Stage walled(chosen, locked);
  CHECK(walled.choose(8).first == nullptr);
  locked[1].kind = Kind::raw;
  Stage raw(chosen, locked);
  CHECK(raw.choose(8).first == nullptr);
  CHECK_EQUAL(largest_run(raw.arena(), true), 4u);
}

TEST(a_run_never_begins_or_ends_with_something_that_only_moves) {
  check::Random random(5);
  for (int round = 0; round < 2000; ++round) {
    Stage stage(options(), random_items(random));
    stage.context.price.staleness = 1;
    const Run run = stage.choose(random.between(1, 40));
    if (!run.first) continue;
    for (const Block* end : {run.first, run.last}) CHECK(!end->storage || end->storage->evictable());
  }
}

TEST(what_nobody_holds_goes_first) {
  for (const std::string kind : {"coop", "dtr", "dte", "lru"}) {
    const check::Context context("policy", kind);
    Stage stage(options(kind), {{Kind::held, 8, 1, 0}, {Kind::dead, 8, 1e6, 99}, {Kind::held, 8, 1, 0}});
    CHECK_EQUAL(stage.choose(8).first, stage.blocks[1]);
  }
}

TEST(one_at_a_time_policies_choose_what_their_definitions_say) {
  for (const std::string kind : {"dtr", "dte", "lru", "coop"}) {
    check::Random random(kind.size() + 1);
    int found = 0;
    for (int round = 0; round < 2000; ++round) {
      const check::Context a("policy", kind), b("round", round);
      Options chosen = options(kind);
      if (kind == "coop") chosen.window = false;  // then it is DTE's choice
      Stage stage(chosen, random_items(random));
      const auto score = [&](const Block& block) {
        const Storage& storage = *block.storage;
        if (kind == "lru") return storage.held ? storage.last_access : -1;
        const double stale = std::max(stage.context.clock.now - storage.last_access, kShortest);
        const double cost = storage.held ? storage.producer->cost / stale : 0;
        Bytes bytes = block.bytes;
        if (kind != "dtr") {
          for (const Block* side : {block.prev, block.next}) {
            if (side && side->state == Block::State::free) bytes += side->bytes;
          }
        }
        return cost / static_cast<double>(bytes);
      };
      double least = std::numeric_limits<double>::infinity();
      for (const Block* block = stage.arena().first(); block; block = block->next) {
        if (block->storage && block->storage->evictable()) least = std::min(least, score(*block));
      }
      const Run run = stage.choose(random.between(1, 60));
      CHECK_EQUAL(run.first, run.last);
      CHECK_EQUAL(run.first != nullptr, std::isfinite(least));
      if (!run.first) continue;
      ++found;
      CHECK(run.first->storage->evictable());
      CHECK_NEAR(score(*run.first), least);
    }
    CHECK(found > 1000);
  }
}

TEST(per_byte_prefers_large_cheap_results_to_small_dear_ones) {
  // Sum alone: 4 bytes for 3; per byte: 16 bytes for 4.
  const std::vector<Item> items{{Kind::held, 4, 3, 0}, {Kind::raw, 1}, {Kind::held, 16, 4, 0}};
  Options chosen = options();
  chosen.per_byte = false;
  Stage sum(chosen, items);
  CHECK_EQUAL(sum.choose(4).first, sum.blocks[0]);
  chosen.per_byte = true;
  Stage density(chosen, items);
  CHECK_EQUAL(density.choose(4).first, density.blocks[2]);
}

TEST(a_source_is_moved_only_if_that_is_cheaper_than_another_window) {
  Options chosen = options();
  chosen.copy_bandwidth = 1;  // 2 bytes: 2 s, against the staleness of what would leave: 10
  const auto items = [](Seconds cost) {
    return std::vector<Item>{
        {Kind::free, 4}, {Kind::source, 2}, {Kind::free, 4}, {Kind::raw, 1}, {Kind::held, 8, cost, 90}};
  };
  Stage cheap(chosen, items(1));
  cheap.context.price.staleness = 10;
  CHECK_EQUAL(cheap.choose(8).first, cheap.blocks[4]);
  Stage dear(chosen, items(3));
  dear.context.price.staleness = 10;
  CHECK_EQUAL(dear.choose(8).first, dear.blocks[0]);
}

TEST(what_is_dear_and_quickly_moved_stays_if_its_bytes_are_not_worth_it) {
  Options chosen = options();
  chosen.copy_bandwidth = 1e6;
  Stage stage(chosen,
              {{Kind::held, 8, 1e-3, 90}, {Kind::held, 4, 1, 90}, {Kind::held, 8, 1e-3, 90}, {Kind::source, 4}});
  const auto expensive = [&]() -> Storage& { return *stage.blocks[1]->storage; };
  stage.context.price = {10, 1e-4};
  const Run run = stage.choose(16);
  CHECK(run.first == stage.blocks[0] && run.last == stage.blocks[2]);
  CHECK(stage.context.moves_aside(expensive()));
  CHECK(!stage.context.moves_aside(*stage.blocks[0]->storage));
  CHECK(!stage.choose(20).first);    // without its bytes there is not enough
  stage.context.price.per_byte = 1;  // now bytes are expensive
  CHECK(!stage.context.moves_aside(expensive()));
  CHECK(stage.choose(20).first == stage.blocks[0]);
}

TEST(a_search_leaves_the_mean_staleness_of_what_leaves) {
  Stage stage(options(), {{Kind::held, 4, 1, 90}, {Kind::dead, 4, 1, 70}, {Kind::source, 4}, {Kind::free, 4}});
  stage.choose(8);
  CHECK_NEAR(stage.context.found.staleness, 20.0);
  stage.context.price.staleness = stage.context.found.staleness;
  stage.choose(5);
  CHECK_NEAR(stage.context.found.staleness, 30.0);
}
