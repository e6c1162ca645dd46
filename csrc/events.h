// Everything that happens, for whoever wants to watch: statistics, reports and pictures read events and nothing else.
#pragma once

#include "types.h"

namespace coop {

enum class EventKind : std::uint8_t { place, free, die, evict, restore, move, commit, search, shortage };

inline const char* name(EventKind kind) {
  switch (kind) {
    case EventKind::place: return "place";
    case EventKind::free: return "free";
    case EventKind::die: return "die";
    case EventKind::evict: return "evict";
    case EventKind::restore: return "restore";
    case EventKind::move: return "move";
    case EventKind::commit: return "commit";
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
  Bytes bytes;
};

}  // namespace coop
