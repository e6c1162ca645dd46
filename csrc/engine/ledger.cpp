#include "engine/ledger.h"

#include <stdexcept>
#include <string>

namespace coop {

void Ledger::count_overdraft() {
  for (const Block* block = arena_.last(); block; block = block->prev) {
    if (block->free()) continue;
    top_ = std::max(top_, block->end());
    break;
  }
}

void Ledger::check() const {
  Bytes sources = 0, cached = 0, raw = 0;
  for (const Block* block = arena_.first(); block; block = block->next) {
    if (block->state == Block::State::raw) raw += block->bytes;
    if (!block->storage) continue;
    const Storage& storage = *block->storage;
    if (block->bytes < storage.bytes) throw std::logic_error("rule 1: a storage is larger than its block");
    if (storage.source()) {
      sources += storage.bytes;
    } else if (!storage.held) {
      cached += block->bytes;
    }
  }
  const auto same = [](const char* what, Bytes found, Bytes counted) {
    if (found == counted) return;
    throw std::logic_error(std::string("rule 1: bytes are counted wrongly: ") + what + " " + std::to_string(found) +
                           ", counted " + std::to_string(counted));
  };
  same("sources", sources, sources_);
  same("cached", cached, cached_);
  same("raw", raw, arena_.raw_bytes());
}

}  // namespace coop
