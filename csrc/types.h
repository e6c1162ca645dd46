// The words of the engine: what a block, a storage and an op are, and the numbered rules.
//
// The engine knows no tensor library. It keeps the lineage (which op made which storage from which) and
// the arena (which storage lies where), and asks its driver for a few things: run this op again, the bytes of
// this storage are gone / here, copy these bytes, this record is no longer needed.
//
// Rules that always hold. Code and tests refer to them by number.
//   1. Bytes in use never exceed the budget. The arena never grows.
//   2. A storage is in one state: resident, evicted or dead. What is evicted can be made again, or its bytes are outside.
//   3. What is pinned does not leave. An op's inputs and outputs are pinned while it runs, replays included.
//   4. What was evicted comes back bit for bit.
//   5. Before a source is overwritten, everything alive that would need its old value is resident and committed.
//   6. A replay has no side effects: random state, statistics and mutated arguments are as if it never happened.
//   7. Victims of one request lie side by side with the free blocks between them, and the request lands there
//      (policy coop).
//   8. An exception, in a kernel or for lack of memory, leaves everything consistent.
//   9. With no eviction, the cost of being managed is small enough to leave on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace coop {

using Bytes = std::size_t;
using Seconds = double;

constexpr Seconds kShortest = 1e-9;  // below the cost of any op: keeps scores finite

class Engine;
struct Chunk;
struct Op;
struct Storage;

// A stretch of the arena. Free, raw (handed out, not yet known to be anybody's storage: a kernel's scratch, or an
// output whose op has not finished), or holding one storage.
struct alignas(64) Block {
  enum class State : std::uint8_t { free, raw, used };

  // What a search looks at comes first, in one line of the cache.
  Block* next = nullptr;  // neighbours in address order
  Block* prev = nullptr;
  Storage* storage = nullptr;  // set when used
  Chunk* chunk = nullptr;      // that it belongs to
  Bytes offset = 0;
  Bytes bytes = 0;
  State state = State::free;

  // Links of the tree of free blocks.
  std::uint32_t priority = 0;
  Block* left = nullptr;
  Block* right = nullptr;
  Bytes largest = 0;  // in this subtree

  Bytes end() const { return offset + bytes; }
  // Of the holes directly before and behind it.
  Bytes free_beside() const {
    const auto free_bytes = [](const Block* beside) {
      return beside && beside->state == State::free ? beside->bytes : 0;
    };
    return free_bytes(prev) + free_bytes(next);
  }
};

// One storage that one op reads: a link of the storage's list of consumers, kept inside the op.
struct Edge {
  Storage* storage = nullptr;
  Op* op = nullptr;
  Edge* prev = nullptr;
  Edge* next = nullptr;
};

// A transfer of a storage's bytes that is under way: to the tier outside, while it stays resident, or back, while it is not.
enum class Transit : std::uint8_t { none, out, in };

// The unit of eviction: bytes that one or more tensors view.
struct alignas(64) Storage {
  // What a search looks at comes first, in one line of the cache.
  Op* producer = nullptr;    // null: a source
  Block* block = nullptr;    // null: evicted (or foreign)
  Seconds last_access = 0;   // on the engine's clock
  Seconds cost = 0;          // of its producer
  std::uint32_t pins = 0;    // must stay resident (but may be moved)
  std::uint32_t pinned = 0;  // of these, the program's, which end with its tensor
  std::uint32_t locks = 0;   // a kernel, or somebody outside, knows its address: must stay where it is
  std::uint32_t wanted = 0;  // by ops that wait to be run again
  std::uint32_t missed = 0;  // by evicted storages that somebody needs: their number
  bool held = false;         // somebody outside the lineage refers to it
  bool foreign = false;      // its bytes lie outside the arena: always resident, never moved
  bool open = false;         // foreign, and a pointer to it was taken: others may write to it
  bool exposed = false;      // locked for life: others know its address, and may write to it
  bool tracked = false;      // the driver wants to be told when it is gone
  bool charged = false;      // counted as an operand of the running op
  bool unset = false;        // made by an op that leaves its bytes undefined
  bool ragged = false;       // larger than the tensor that an op returned in it: the rest is undefined
  bool missing = false;      // evicted, and needed: held, or missed itself
  bool lost = false;         // its bytes are nowhere, for good
  bool in_hand = false;      // the driver has just been given it, and will ask to reconsider it
  bool fetched = false;      // brought back before anybody asked, and not used since
  bool ahead = false;        // written before it had to leave, and has not left since
  bool to_count = false;     // the ops behind it may be too many
  Transit transit = Transit::none;

  Bytes bytes = 0;
  Seconds swap_cost = std::numeric_limits<Seconds>::infinity();  // of leaving with its bytes and coming back
  Seconds next_use = 0;  // not before, in the program's own time, as the last step tells; in the past: not known
  Seconds foreseen = 0;  // how far ahead that was when it was told
  Seconds due = 0;       // the same if a use is known then; 0: none is
  Edge* consumers = nullptr;
  Engine* engine = nullptr;
  void* handle = nullptr;  // the driver's; null when nobody outside holds the storage
  std::uint64_t id = 0;
  Seconds around = 0;           // cached: cost of what is evicted around it
  std::uint64_t epoch = 0;      // `around` is valid if this equals the lineage's epoch
  std::uint64_t digest = 0;     // of the bytes, when evicted under checks
  std::uint64_t stamp = 0;      // visited mark
  std::uint32_t uses = 0;       // length of the list of consumers
  std::uint32_t output = 0;     // which output of its producer
  std::uint32_t slot = 0;       // scratch of the driver
  std::uint32_t versions = 0;   // how often it was overwritten in place and renamed
  std::uint32_t component = 0;  // union-find node of an evicted storage; 0: none
  std::uint32_t value = 0;      // of the plan in force that it is, from 1; 0: none
  std::uint32_t page = 0;       // of a copy outside the arena, the driver's number; 0: there is none
  std::uint32_t orphan = 0;     // its place in the engine's list of orphans, from 1; 0: it is none
  std::uint32_t life = 0;       // in the engine's history; 0: none

  // Its bytes come back as they were: where an op leaves some undefined, they may be any.
  bool defined() const { return !unset && !ragged; }
  bool source() const { return producer == nullptr; }
  bool resident() const { return block != nullptr || foreign; }
  bool evicted() const { return !resident(); }
  // Evicted, and nowhere else: it has to be made again.
  bool gone() const { return !resident() && !page; }
  // It may leave with its bytes: they are outside already, or there is a tier that takes them.
  bool swappable() const { return swap_cost < std::numeric_limits<Seconds>::infinity(); }
  // The cheapest way out and back, if making it again costs so much.
  Seconds leaving_cost(Seconds again) const { return producer && again < swap_cost ? again : swap_cost; }
  // How long nobody will miss it, as far as can be told: until it is used next, if that is known, else as long as it has
  // not been used. `ran`: the program's own time, without what was waited for or done again.
  Seconds idle(Seconds now, Seconds ran) const {
    const Seconds time = next_use > ran ? next_use - ran : now - last_access;
    return time > kShortest ? time : kShortest;
  }
  bool unused() const { return !held && !uses && !pins && !locks && !wanted && !in_hand; }
  // Free for the taking.
  bool spare() const { return producer && !held && !wanted && !missed; }
  // A transfer knows its address, like a kernel: for as long as it takes.
  bool movable() const { return block && locks == 0 && transit == Transit::none; }
  bool evictable() const { return movable() && pins == 0 && (producer || swappable()); }
  // The same, for a request that what waiting ops will read leaves for as well, or not.
  bool evictable(bool wanted_too) const { return evictable() && (wanted_too || !wanted); }
};

// How an op makes its first output.
enum class InPlace : std::uint8_t {
  no,           // in memory of its own
  on_old,       // in the memory of input 0, the old version, which is gone afterwards
  from_scratch  // in memory it is given and overwrites completely
};

// One leaf operator call that can be run again. Inputs and outputs follow it in the same piece of memory.
struct Op {
  void* recipe = nullptr;  // the driver's: how to run it again
  Seconds cost = 0;
  Bytes output_bytes = 0;
  Bytes target_bytes = 0;  // of the first output, which may be gone while others live; 0 unless in place
  Bytes need = 0;          // to run it again, as last found
  Bytes scratch = 0;       // beyond its outputs, at once, as it took when it ran
  std::uint32_t inputs_count = 0;
  std::uint32_t outputs_count = 0;
  std::uint32_t live_outputs = 0;  // outputs that still exist, resident or not
  std::uint32_t depth = 0;         // ops on the longest path from a source
  std::uint64_t number = 0;        // in the order of recording
  std::uint64_t oldest = 0;        // of the ops behind it through storages that nobody holds; at the latest, itself
  std::uint64_t stamp = 0;
  InPlace in_place = InPlace::no;
  bool waiting = false;  // to be run again

  Edge* inputs() { return reinterpret_cast<Edge*>(this + 1); }
  const Edge* inputs() const { return reinterpret_cast<const Edge*>(this + 1); }
  Storage** outputs() { return reinterpret_cast<Storage**>(inputs() + inputs_count); }
  Storage* const* outputs() const { return reinterpret_cast<Storage* const*>(inputs() + inputs_count); }
};

// Bytes that bringing an evicted storage back takes at once, as last found.
inline Bytes need_of(const Storage& storage) {
  return storage.page || !storage.producer ? storage.bytes : storage.producer->need;
}

// Where a new storage goes. Sources, tiny blocks and dear results gather at the low end of the arena, cheap ones at
// the high end, so that cheap neighbours form long runs.
enum class Side : std::uint8_t { low, high };

enum class Placement : std::uint8_t {
  two_ended,  // the fitting hole nearest the side's end
  best_fit,   // the smallest fitting hole; the side only chooses the edge inside it
};

enum class CostModel : std::uint8_t {
  own,         // the storage's op alone
  exact,       // plus all evicted ancestors and descendants, reached through evicted storages
  union_find,  // plus the components of evicted neighbours (DTR's e-hat)
};

enum class PolicyKind : std::uint8_t { coop, dtr, dte, lru, delta };

// What the user may choose. Each part of Coop has a switch of its own, for ablation.
struct Options {
  Bytes budget = 0;
  Bytes alignment = 64;
  PolicyKind policy = PolicyKind::coop;
  Placement placement = Placement::two_ended;
  CostModel cost = CostModel::exact;
  bool window = true;                  // policy coop: one run at a time; off: one storage at a time, as DTE does
  bool partition = true;               // cheap and dear results to opposite sides
  bool per_byte = true;                // a window's cost is divided by its bytes
  bool needed_only = true;             // what was made from a storage counts in its cost only if somebody needs it
  bool keep_dead = true;               // storages nobody holds stay until their room is needed
  bool in_place = true;                // recomputable in-place by renaming; off: copy on write
  bool move = true;                    // policy coop: sources in the way of a window may be copied aside
  bool rescue = true;                  // the same for every policy where nothing else helps, and compaction after that
  bool evict = true;                   // off: no lineage, memory is only measured
  bool record_backward = false;        // gradients on their way through a plain backward pass can be recomputed too
  Bytes tiny = 512;                    // storages up to this size are never worth evicting
  std::uint32_t max_depth = 1u << 16;  // longer chains are cut by committing
  std::uint32_t max_versions = 8;      // likewise chains of in-place versions
  std::uint32_t exact_limit = 64;      // ops visited before union-find takes over
  double copy_bandwidth = 4e9;         // bytes per second, to price a move
  bool swap = false;                   // storages may leave with their bytes, to where the driver puts them
  double swap_out = 2e9;               // bytes per second to there, to begin with: then it is measured
  double swap_in = 2e9;                // and back
  Bytes swap_least = 1 << 16;          // storages below this size do not swap
  double swap_load = 0.5;              // of a transfer's time, what the ops beside it lose
  bool foresee = true;                 // with swap: what the last step did is expected of this one
  int checks = 0;                      // level of rule checks: 1, 2 at every event, 3 with all evicted after each op

  // One run of neighbours leaves at a time, and is large enough.
  bool windows() const { return policy == PolicyKind::coop && window; }
};

}  // namespace coop
