// Everything that happens in the engine. Reports and pictures read events and nothing else. The
// arena at any moment can be rebuilt from them.
#pragma once

#include "engine/types.h"

namespace coop {

// The kinds of events: name, and what it means. The one list: Python's is made from it
// (src/coop/surface.py).
#define COOP_EVENTS(X)                                                                                         \
  X(place, "a raw block is handed out")                                                                        \
  X(bind, "the block holds this storage from now on; storage 0: it is raw again")                              \
  X(record, "the storage can be recomputed from now on; value: the cost of its op")                            \
  X(commit, "the storage can no longer be recomputed")                                                         \
  X(die, "nobody outside refers to it any more")                                                               \
  X(evict, "its block is free; it can be recomputed, or a copy is outside")                                    \
  X(restore, "the raw block holds it again: an op has run again")                                              \
  X(out,                                                                                                       \
    "a transfer has ended: a copy of the storage is outside; storage 0: it died meanwhile; value: seconds of " \
    "the transfer; waited: of these, and before it began, by the program")                                     \
  X(in, "a transfer has ended: the raw block holds the storage again; value and waited as for out")            \
  X(move, "value: the offset it comes from")                                                                   \
  X(free, "the block is free, and what it held is gone for good")                                              \
  X(search, "bytes: asked for; value: seconds")                                                                \
  X(shortage, "no room was found; bytes: requested")                                                           \
  X(plan_adopted, "a plan is in force from now on; value: its ops")                                            \
  X(plan_lost, "the program does something else than was planned; value: the op of the plan")                  \
  X(ran, "checks 2: an op has run, and what follows from it is done; value: its cost")                         \
  X(write, "checks 2: a transfer out begins")                                                                  \
  X(read, "checks 2: a transfer into the raw block begins")                                                    \
  X(price,                                                                                                     \
    "checks 2, with a tier: what a choice is made by; storage 0: room for these bytes is looked for, or, if "  \
    "none, everything leaves; then each storage there: value: seconds that leaving with its bytes costs, "     \
    "waited: its idle time")                                                                                   \
  X(idle, "the same for a storage that cannot leave with its bytes; waited: its idle time")

enum class EventKind : std::uint8_t {
#define COOP_EVENT(name, meaning) name,
  COOP_EVENTS(COOP_EVENT)
#undef COOP_EVENT
};

inline const char* name(EventKind kind) {
  constexpr const char* kNames[] = {
#define COOP_EVENT(name, meaning) #name,
      COOP_EVENTS(COOP_EVENT)
#undef COOP_EVENT
  };
  return kNames[static_cast<int>(kind)];
}

struct Event {
  EventKind kind;
  Seconds time;           // on the engine's clock
  std::uint64_t storage;  // 0: none
  Bytes offset;
  Bytes bytes;  // of the block
  double value;
  Seconds waited = 0;  // by the program, for a transfer
};

}  // namespace coop
