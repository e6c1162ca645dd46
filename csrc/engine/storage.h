// The unit of eviction: bytes that one or more tensors view.
//
// A storage is made of parts. Each part is written by one class, which is named beside it; everybody may read.
// tests/test_owners.py holds us to that.
#pragma once

#include "engine/block.h"
#include "engine/types.h"

namespace coop {

struct Edge;

// Rule 2. A dead storage is none any more.
enum class State : std::uint8_t { resident, swapped, evicted };

// A transfer of a storage's bytes that is under way: to the tier, while it stays resident, or back, while it is not.
enum class Transit : std::uint8_t { none, out, in };

// Why a storage must stay. Whoever makes a claim ends it.
struct Claims {
  std::uint32_t pins = 0;          // it stays resident, but may be moved
  std::uint32_t program_pins = 0;  // of these, the program's, which end with its tensor
  std::uint32_t locks = 0;         // a kernel, or somebody outside, knows its address: it stays where it is
  std::uint32_t wanted = 0;        // by ops that wait to be run again, or by a plan: it leaves last
  bool exposed = false;            // locked for life: others know its address, and may write to it
  bool charged = false;            // the ledger counts it as an operand of the running op
  bool driver_refers = false;      // the driver has just been given it, and will ask to reconsider it

  bool any() const { return pins || locks || wanted || driver_refers; }
};

// What evicting it would cost. Written by Cost.
struct Price {
  std::uint32_t missed = 0;     // by evicted storages that somebody needs: their number
  std::uint32_t component = 0;  // union-find node of an evicted storage; 0: none
  bool missing = false;         // evicted, and needed: held, or missed itself
  Seconds around = 0;           // cached: cost of what is evicted around it
  std::uint64_t epoch = 0;      // `around` is valid if this is the epoch of Cost
};

// Its bytes outside of the arena. Written by Transfers.
struct Copy {
  Seconds cost = kNever;   // of leaving with its bytes and coming back
  std::uint32_t page = 0;  // the driver's number; 0: there is no copy
  Transit transit = Transit::none;
  bool lost = false;  // its bytes are nowhere, for good
};

// When it is used next. Written by Forecast.
struct Outlook {
  Seconds next_use = 0;        // not before, in the program's own time; in the past: not known
  Seconds due = 0;             // the same if a use is known then; 0: none is
  Seconds idle = 0;            // how far ahead next_use was when it was told
  std::uint32_t life = 0;      // in the history; 0: none
  bool written_ahead = false;  // before it had to leave, and it has not left since
  bool read_ahead = false;     // brought back before anybody asked, and not used since
};

// Whether its lineage should be cut. Written by Commits.
struct Review {
  std::uint32_t orphan = 0;  // its place in the list of orphans, from 1; 0: it is none
  bool long_trail = false;   // the ops behind it may be too many
};

struct alignas(64) Storage {
  // What a search looks at comes first, in one line of the cache.
  Op* producer = nullptr;   // Lineage; null: a source
  Block* block = nullptr;   // Blocks; null: not in the arena
  Seconds last_access = 0;  // Engine, on its clock
  Seconds cost = 0;         // Lineage: of its producer
  Claims claims;
  bool held = false;     // Engine: somebody outside the lineage refers to it
  bool foreign = false;  // Engine: its bytes lie outside the arena: always resident, never moved
  bool open = false;     // Engine: foreign, and a pointer to it was taken: others may write to it
  Price price;

  Copy copy;
  Outlook outlook;
  Review review;
  std::uint32_t plan_value = 0;  // Follower: which of the plan's values it is, from 1; 0: none

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
  bool tracked = false;        // it wants to be told when the storage is gone
  bool unset = false;          // made by an op that leaves its bytes undefined
  bool ragged = false;         // larger than the tensor that an op returned in it: the rest is undefined
  std::uint32_t slot = 0;      // scratch
  std::uint32_t messages = 0;  // of other threads, under way, that read or write it

  std::uint64_t digest = 0;  // Blocks: of the bytes, when evicted under checks

  State state() const { return resident() ? State::resident : copy.page ? State::swapped : State::evicted; }
  bool resident() const { return block != nullptr || foreign; }
  bool absent() const { return !resident(); }
  // It has to be made again.
  bool evicted() const { return !resident() && !copy.page; }
  bool source() const { return producer == nullptr; }
  // Its bytes come back as they were: where an op leaves some undefined, they may be any.
  bool defined() const { return !unset && !ragged; }
  // It may leave with its bytes: they are outside already, or there is a tier that takes them.
  bool swappable() const { return copy.cost < kNever; }
  // The cheapest way out and back, if making it again costs so much.
  Seconds leaving_cost(Seconds again) const { return producer && again < copy.cost ? again : copy.cost; }
  // How long nobody will miss it, as far as can be told: until it is used next, if that is known, else as long as it
  // has not been used.
  Seconds idle(const Clock& clock) const {
    const Seconds time = outlook.next_use > clock.ran ? outlook.next_use - clock.ran : clock.now - last_access;
    return time > kShortest ? time : kShortest;
  }
  bool unused() const { return !held && !uses && !claims.any(); }
  // It costs nothing to evict: nobody will ask for it.
  bool droppable() const { return producer && !held && !claims.wanted && !price.missed; }
  // A transfer knows its address, like a kernel: for as long as it takes.
  bool movable() const { return block && claims.locks == 0 && copy.transit == Transit::none; }
  bool evictable() const { return movable() && claims.pins == 0 && (producer || swappable()); }
  // The same, for a request that what waiting ops will read leaves for as well, or not.
  bool evictable(bool wanted_too) const { return evictable() && (wanted_too || !claims.wanted); }
};

}  // namespace coop
