// The arena against a naive model: a map of what lies where.
#include <algorithm>
#include <map>
#include <stdexcept>

#include "check.h"
#include "engine/arena.h"

using namespace coop;

namespace {

struct Hole {
  Bytes offset, bytes;
};

// Taken stretches by offset; holes are what lies between.
struct Model {
  Bytes capacity, alignment;
  Placement placement;
  std::map<Bytes, Bytes> taken;

  Bytes round(Bytes bytes) const {
    Bytes rounded = alignment;
    while (rounded < bytes) rounded += alignment;
    return rounded;
  }
  std::vector<Hole> holes() const {
    std::vector<Hole> found;
    Bytes at = 0;
    for (const auto& [offset, bytes] : taken) {
      if (offset > at) found.push_back({at, offset - at});
      at = offset + bytes;
    }
    if (capacity > at) found.push_back({at, capacity - at});
    return found;
  }
  // Where the request goes; the capacity if nowhere.
  Bytes allocate(Bytes bytes, Side side) {
    bytes = round(bytes);
    const Hole* best = nullptr;
    const std::vector<Hole> all = holes();
    for (const Hole& hole : all) {
      if (hole.bytes < bytes) continue;
      const bool better = !best                              ? true
                          : placement == Placement::best_fit ? hole.bytes < best->bytes
                                                             : side == Side::high;
      if (better) best = &hole;
    }
    if (!best) return capacity;
    const Bytes offset = side == Side::low ? best->offset : best->offset + best->bytes - bytes;
    taken[offset] = bytes;
    return offset;
  }
};

void compare(const Arena& arena, const Model& model) {
  arena.check();
  Bytes free = 0, largest = 0;
  const std::vector<Hole> holes = model.holes();
  for (const Hole& hole : holes) {
    free += hole.bytes;
    largest = std::max(largest, hole.bytes);
  }
  CHECK_EQUAL(arena.free_bytes(), free);
  CHECK_EQUAL(arena.largest_free(), largest);
  CHECK_EQUAL(arena.blocks(), holes.size() + model.taken.size());
  Bytes at = 0;
  const Block* last = nullptr;
  for (const Block* block = arena.first(); block; block = block->next) {
    CHECK_EQUAL(block->offset, at);
    CHECK_EQUAL(block->offset % model.alignment, 0u);
    CHECK_EQUAL(block->bytes % model.alignment, 0u);
    const auto found = model.taken.find(block->offset);
    CHECK_EQUAL(found != model.taken.end(), block->state != Block::State::free);
    if (found != model.taken.end()) CHECK_EQUAL(block->bytes, found->second);
    at += block->bytes;
    last = block;
  }
  CHECK_EQUAL(arena.last(), last);
  CHECK_EQUAL(at, model.capacity);
}

struct Case {
  Placement placement;
  Bytes alignment;
  std::uint64_t seed;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Placement placement : {Placement::two_ended, Placement::best_fit}) {
    for (const Bytes alignment : {1, 8, 64, 512}) {
      for (std::uint64_t seed = 1; seed <= 3; ++seed) all.push_back({placement, alignment, seed});
    }
  }
  return all;
}

}  // namespace

TEST(random_requests_land_where_a_naive_search_puts_them) {
  for (const Case& test : cases()) {
    const check::Context a("placement", static_cast<int>(test.placement)), b("alignment", test.alignment),
        c("seed", test.seed);
    check::Random random(test.seed);
    const Bytes budget = test.alignment * random.between(50, 200) + (test.alignment > 1 ? 1 : 0);
    Arena arena(budget, test.alignment, test.placement);
    Model model{budget / test.alignment * test.alignment, test.alignment, test.placement, {}};
    CHECK_EQUAL(arena.capacity(), model.capacity);
    std::map<Bytes, Block*> blocks;
    for (int step = 0; step < 1500; ++step) {
      const std::uint64_t what = random.below(100);
      if (what < 50) {
        const Bytes bytes = random.between(1, test.alignment * (random.chance(10) ? 60 : 12));
        const Side side = random.chance(50) ? Side::low : Side::high;
        Block* block = arena.allocate(bytes, side);
        const Bytes offset = model.allocate(bytes, side);
        CHECK_EQUAL(block != nullptr, offset != model.capacity);
        if (!block) continue;
        CHECK_EQUAL(block->offset, offset);
        CHECK(block->bytes >= bytes && block->state == Block::State::raw);
        blocks[offset] = block;
      } else if (what < 90 && !blocks.empty()) {
        auto at = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random.below(blocks.size())));
        const Bytes offset = at->first;
        const Block* hole = arena.release(at->second);
        blocks.erase(at);
        model.taken.erase(offset);
        CHECK(hole->state == Block::State::free && hole->offset <= offset && offset < hole->end());
      } else if (!blocks.empty()) {  // slide something down
        auto at = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random.below(blocks.size())));
        Block* block = at->second;
        if (!block->prev || block->prev->state != Block::State::free) continue;
        Storage storage;
        storage.bytes = block->bytes;
        storage.block = block;
        arena.occupy(block, &storage);
        const Bytes from = block->offset, to = block->prev->offset;
        const Block* hole = arena.slide_down(block);
        CHECK_EQUAL(block->offset, to);
        CHECK_EQUAL(hole->offset, block->end());
        arena.check();
        arena.vacate(block);
        blocks.erase(at);
        blocks[to] = block;
        model.taken[to] = model.taken[from];
        model.taken.erase(from);
      }
      compare(arena, model);
    }
    // Whatever the order of release, the arena is one free block in the end.
    while (!blocks.empty()) {
      auto at = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random.below(blocks.size())));
      arena.release(at->second);
      model.taken.erase(at->first);
      blocks.erase(at);
      compare(arena, model);
    }
    CHECK_EQUAL(arena.blocks(), 1u);
    CHECK_EQUAL(arena.largest_free(), arena.capacity());
  }
}

TEST(raw_blocks_are_found_by_offset_and_others_are_not) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    Arena arena(64 * 4000, 64, Placement::two_ended);
    std::map<Bytes, Block*> raw, used;
    std::map<Block*, Storage> storages;
    for (int step = 0; step < 20000; ++step) {
      const std::uint64_t what = random.below(10);
      if (what < 5 || raw.empty()) {  // enough to make the table grow several times
        if (Block* block = arena.allocate(random.between(1, 300), random.chance(50) ? Side::low : Side::high)) {
          raw[block->offset] = block;
        } else {
          for (auto& [offset, other] : raw) arena.release(other);
          raw.clear();
        }
      } else if (what < 7) {
        auto at = std::next(raw.begin(), static_cast<std::ptrdiff_t>(random.below(raw.size())));
        Storage& storage = storages[at->second];
        storage.block = at->second;
        arena.occupy(at->second, &storage);
        used.insert(*at);
        raw.erase(at);
      } else if (what < 8 && !used.empty()) {
        auto at = std::next(used.begin(), static_cast<std::ptrdiff_t>(random.below(used.size())));
        arena.vacate(at->second);
        storages.erase(at->second);
        raw.insert(*at);
        used.erase(at);
      } else if (what < 9) {
        auto at = std::next(raw.begin(), static_cast<std::ptrdiff_t>(random.below(raw.size())));
        arena.release(at->second);
        raw.erase(at);
      } else if (!used.empty()) {
        auto at = std::next(used.begin(), static_cast<std::ptrdiff_t>(random.below(used.size())));
        storages.erase(at->second);
        arena.release(at->second);
        used.erase(at);
      }
      if (step % 64) continue;
      arena.check();
      for (const auto& [offset, block] : raw) CHECK_EQUAL(arena.raw_at(offset), block);
      for (const auto& [offset, block] : used) CHECK(arena.raw_at(offset) == nullptr);
      for (const Block* block = arena.first(); block; block = block->next) {
        if (block->state == Block::State::free) CHECK(arena.raw_at(block->offset) == nullptr);
      }
    }
  }
}

TEST(a_request_is_cut_from_the_given_hole_at_the_given_side) {
  for (const Placement placement : {Placement::two_ended, Placement::best_fit}) {
    Arena arena(1024, 64, placement);
    Block* low = arena.take(arena.first(), 100, Side::low);
    CHECK_EQUAL(low->offset, 0u);
    CHECK_EQUAL(low->bytes, 128u);
    Block* high = arena.take(arena.last(), 64, Side::high);
    CHECK_EQUAL(high->offset, 960u);
    Block* rest = arena.take(low->next, 1024 - 128 - 64, Side::high);  // exactly: no hole is left
    CHECK_EQUAL(rest->offset, 128u);
    CHECK_EQUAL(arena.free_bytes(), 0u);
    CHECK_EQUAL(arena.largest_free(), 0u);
    CHECK(arena.allocate(1, Side::low) == nullptr);
    arena.check();
    arena.release(rest);
    arena.release(high);
    arena.release(low);
    arena.check();
    CHECK_EQUAL(arena.blocks(), 1u);
  }
}

TEST(more_room_at_the_high_end_joins_what_is_free_there) {
  for (const Placement placement : {Placement::two_ended, Placement::best_fit}) {
    for (const bool full : {false, true}) {
      Arena arena(256, 64, placement);
      Block* low = arena.allocate(full ? 256 : 64, Side::low);
      arena.extend(200);  // rounded down
      arena.check();
      CHECK_EQUAL(arena.capacity(), 448u);
      CHECK_EQUAL(arena.blocks(), 2u);
      CHECK_EQUAL(arena.largest_free(), full ? 192u : 384u);
      Block* high = arena.allocate(100, Side::high);
      CHECK_EQUAL(high->offset, 320u);
      arena.release(low);
      arena.release(high);
      arena.check();
      CHECK_EQUAL(arena.blocks(), 1u);
    }
  }
}

TEST(an_empty_request_gets_a_place_of_its_own) {
  Arena arena(1024, 64, Placement::two_ended);
  Block* nothing = arena.allocate(0, Side::low);
  Block* something = arena.allocate(64, Side::low);
  arena.check();
  CHECK(nothing->offset != something->offset);
  CHECK_EQUAL(arena.raw_at(nothing->offset), nothing);
  CHECK_EQUAL(arena.raw_at(something->offset), something);
}

TEST(a_request_beyond_all_addresses_is_refused) {
  Arena arena(1024, 64, Placement::best_fit);
  CHECK(arena.allocate(SIZE_MAX, Side::low) == nullptr);
  CHECK(arena.allocate(SIZE_MAX - 64, Side::high) == nullptr);
  CHECK(arena.allocate(1025, Side::low) == nullptr);
  arena.check();
}

TEST(check_notices_damage) {
  Arena arena(1024, 64, Placement::two_ended);
  Block* block = arena.allocate(64, Side::low);
  arena.check();
  block->bytes = 128;
  CHECK_THROWS(std::logic_error, arena.check());
  block->bytes = 64;
  block->state = Block::State::used;  // nobody's
  CHECK_THROWS(std::logic_error, arena.check());
  block->state = Block::State::raw;
  arena.check();
}
