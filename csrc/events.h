// Everything that happens, for whoever wants to watch: reports and pictures read events and nothing else. The arena at any
// moment can be rebuilt from them.
#pragma once

#include "types.h"

namespace coop {

enum class EventKind : std::uint8_t {
  place,    // a raw block is handed out
  bind,     // the block holds this storage from now on; storage 0: it is raw again
  record,   // the storage can be recomputed from now on; value: cost of its op
  commit,   // it cannot any more
  die,      // nobody outside refers to it any more
  evict,    // its block is free; it can be recomputed
  restore,  // the raw block holds it again
  move,     // value: the offset it comes from
  free,     // the block is free, and what it held is gone for good
  search,   // bytes: asked for; value: seconds
  shortage  // bytes: asked for, in vain
};

inline const char* name(EventKind kind) {
  switch (kind) {
    case EventKind::place: return "place";
    case EventKind::bind: return "bind";
    case EventKind::record: return "record";
    case EventKind::commit: return "commit";
    case EventKind::die: return "die";
    case EventKind::evict: return "evict";
    case EventKind::restore: return "restore";
    case EventKind::move: return "move";
    case EventKind::free: return "free";
    case EventKind::search: return "search";
    case EventKind::shortage: return "shortage";
  }
  return "?";
}

struct Event {
  EventKind kind;
  Seconds time;           // on the engine's clock
  std::uint64_t storage;  // 0: none
  Bytes offset;
  Bytes bytes;  // of the block
  double value;
};

}  // namespace coop
