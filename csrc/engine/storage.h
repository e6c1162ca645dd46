// The unit of eviction: bytes that one or more tensors view.
//
// A storage is made of parts. One class writes each part; the comment beside it names that class.
// Everybody may read. tests/test_owners.py checks this.
#pragma once

#include "engine/block.h"
#include "engine/types.h"

namespace coop {

struct Edge;

// Rule 2. A dead storage has no record, so it needs no state here.
enum class State : std::uint8_t { resident, swapped, evicted };

// A transfer of a storage's bytes that is under way: out (the storage is still resident) or in (it
// is not yet).
enum class Transit : std::uint8_t { none, out, in };

// Why a storage must stay. The code that makes a claim also ends it.
struct Claims {
  std::uint32_t pins = 0;          // it stays resident, but may be moved; a count
  std::uint32_t program_pins = 0;  // those of `pins` that the program made: they end with its tensor
  std::uint32_t locks = 0;         // a kernel, or somebody outside, knows its address: it is not moved
  std::uint32_t wanted = 0;        // ops that wait to run again and plans that will read it: it leaves last
  bool exposed = false;            // locked for life: others know its address and may write to it
  bool charged = false;            // the ledger counts it as an operand of the running op
  bool driver_refers = false;      // the driver was just given it and will call `reconsider`

  bool any() const { return pins || locks || wanted || driver_refers; }
};

// What evicting it would cost. Written by Cost.
struct Price {
  std::uint32_t missed = 0;     // how many `missing` storages are made from it
  std::uint32_t component = 0;  // union-find node of an evicted storage; 0: none
  bool missing = false;         // evicted, and needed: it is held, or missed itself
  Seconds around = 0;           // cached: cost of the evicted storages around it
  std::uint64_t epoch = 0;      // `around` is valid while this equals Cost's epoch
};

// Its copy in the tier. Written by Transfers.
struct Copy {
  Seconds cost = kNever;   // of swapping it out and in; kNever: it cannot be swapped
  std::uint32_t page = 0;  // the driver's number of the copy; 0: there is none
  Transit transit = Transit::none;
  bool lost = false;  // its bytes are gone and nothing can bring them back
};

// When it is used next. Written by Forecast.
struct Outlook {
  Seconds next_use = 0;        // it is not used before this (Clock::ran); in the past: not known
  Seconds due = 0;             // when it is used next; 0: no use is known
  Seconds idle = 0;            // how far ahead next_use was when it was set
  std::uint32_t life = 0;      // its number in the history; 0: none
  bool written_ahead = false;  // written before it had to leave, and still resident
  bool read_ahead = false;     // read back before an op asked for it, and not used since
};

// Whether its lineage should be cut. Written by Orphans and Trails.
struct Review {
  std::uint32_t orphan = 0;  // its place in the list of orphans, from 1; 0: it is no orphan
  bool returns = false;      // the program is expected to make the same bytes again: it is no orphan
  bool long_trail = false;   // its trail may be too long: it will be counted
};

struct alignas(64) Storage {
  // What a search reads comes first, in one cache line.
  Op* producer = nullptr;   // Lineage; null: a source
  Block* block = nullptr;   // Blocks; null: not in the arena
  Seconds last_access = 0;  // Engine, on its clock
  Seconds cost = 0;         // Lineage: its producer's cost
  Claims claims;
  bool held = false;     // Engine: somebody outside the lineage refers to it
  bool foreign = false;  // Engine: its bytes lie outside the arena: always resident, never moved
  bool open = false;     // Engine: foreign, and a pointer to it was taken: others may write to it
  Price price;

  Copy copy;
  Outlook outlook;
  Review review;
  std::uint32_t plan_value = 0;  // Follower: its number among the plan's values, from 1; 0: none

  // Lineage.
  Bytes bytes = 0;
  Edge* consumers = nullptr;
  std::uint64_t id = 0;
  std::uint64_t stamp = 0;     // visited mark
  std::uint32_t uses = 0;      // length of the list of consumers
  std::uint32_t output = 0;    // which output of its producer
  std::uint32_t versions = 0;  // how often it was overwritten in place and renamed

  // Engine: who refers to it from outside.
  Engine* engine = nullptr;
  void* handle = nullptr;  // the driver's; null when nobody outside holds the storage

  // The driver's own.
  bool tracked = false;         // the driver wants to be told when the storage is gone
  bool unset = false;           // made by an op that leaves its bytes undefined
  bool ragged = false;          // larger than the tensor that an op returned in it: the rest is undefined
  std::uint32_t slot = 0;       // scratch
  std::uint32_t borrowers = 0;  // who reads or writes it outside of operators now, such as a collective under way

  std::uint64_t digest = 0;  // Blocks: of the bytes, when evicted under checks

  State state() const { return resident() ? State::resident : copy.page ? State::swapped : State::evicted; }
  bool resident() const { return block != nullptr || foreign; }
  bool absent() const { return !resident(); }
  // Neither resident nor in the tier: it has to be recomputed.
  bool evicted() const { return !resident() && !copy.page; }
  bool source() const { return producer == nullptr; }
  // Whether all its bytes come back as they were: those that an op leaves undefined may differ.
  bool defined() const { return !unset && !ragged; }
  // It may leave with its bytes: a copy is in the tier already, or the tier will take one.
  bool swappable() const { return copy.cost < kNever; }
  // The cost of the cheaper way out and back, if recomputing costs `again`.
  Seconds leaving_cost(Seconds again) const { return producer && again < copy.cost ? again : copy.cost; }
  // Its idle time: until its next use if that is known, else the time since its last use.
  Seconds idle(const Clock& clock) const {
    const Seconds time = outlook.next_use > clock.ran ? outlook.next_use - clock.ran : clock.now - last_access;
    return time > kShortest ? time : kShortest;
  }
  bool unused() const { return !held && !uses && !claims.any(); }
  // Evicting it costs nothing: nobody will ask for it.
  bool droppable() const { return producer && !held && !claims.wanted && !price.missed; }
  // Like a kernel, a transfer knows the address of its storage until it is done.
  bool movable() const { return block && claims.locks == 0 && copy.transit == Transit::none; }
  bool evictable() const { return movable() && claims.pins == 0 && (producer || swappable()); }
  // `wanted_too`: what waiting ops will read may leave as well.
  bool evictable(bool wanted_too) const { return evictable() && (wanted_too || !claims.wanted); }
};

}  // namespace coop
