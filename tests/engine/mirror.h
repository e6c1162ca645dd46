// The arena as an onlooker sees it, who knows nothing but the events.
#pragma once

#include <map>
#include <span>

#include "check.h"
#include "engine/arena.h"
#include "engine/events.h"

namespace fake {

using namespace coop;

class Mirror {
 public:
  void apply(std::span<const Event> events) {
    for (const Event& event : events) apply(event);
  }
  void compare(const Arena& arena) const {
    auto place = places_.begin();
    for (const Block* block = arena.first(); block; block = block->next) {
      if (block->state == Block::State::free) continue;
      CHECK(place != places_.end());
      CHECK_EQUAL(place->first, block->offset);
      CHECK_EQUAL(place->second.bytes, block->bytes);
      CHECK_EQUAL(place->second.storage, block->storage ? block->storage->id : 0);
      ++place;
    }
    CHECK(place == places_.end());
  }

 private:
  struct Place {
    Bytes bytes;
    std::uint64_t storage;
  };

  void apply(const Event& event) {
    switch (event.kind) {
      case EventKind::place: CHECK(places_.insert({event.offset, {event.bytes, 0}}).second); break;
      case EventKind::bind:
      case EventKind::in:
      case EventKind::restore: {
        const auto found = places_.find(event.offset);
        CHECK(found != places_.end());
        CHECK_EQUAL(found->second.bytes, event.bytes);
        if (event.kind != EventKind::bind) CHECK_EQUAL(found->second.storage, 0u);
        found->second.storage = event.storage;
        break;
      }
      case EventKind::evict:
      case EventKind::free: remove(event.offset, event); break;
      case EventKind::move:
        remove(static_cast<Bytes>(event.value), event);
        CHECK(places_.insert({event.offset, {event.bytes, event.storage}}).second);
        break;
      case EventKind::record:
      case EventKind::commit:
      case EventKind::die:
      case EventKind::out:
      case EventKind::plan_adopted:
      case EventKind::plan_lost:
      case EventKind::search:
      case EventKind::shortage:
      case EventKind::ran:
      case EventKind::write:
      case EventKind::read:
      case EventKind::price:
      case EventKind::idle: break;
    }
  }
  void remove(Bytes offset, const Event& event) {
    const auto found = places_.find(offset);
    CHECK(found != places_.end());
    CHECK_EQUAL(found->second.bytes, event.bytes);
    CHECK_EQUAL(found->second.storage, event.storage);
    places_.erase(found);
  }

  std::map<Bytes, Place> places_;
};

}  // namespace fake
