#include "engine/commits.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace coop {

namespace {
constexpr Bytes kNotMuchLarger = 2;  // times the size of an orphan: up to this, its dependents are committed
}

Op* Commits::record(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
                    InPlace in_place) {
  for (const Storage* output : outputs) {
    if (output) ledger_.begin_change(*output);
  }
  Op* op = lineage_.make_op(recipe, cost, inputs, outputs, in_place);
  for (const Storage* output : outputs) {
    if (output) ledger_.end_change(*output);
  }
  return op;
}

void Commits::commit(Storage& storage) {
  if (!storage.producer) return;
  {
    const Ledger::Change change(ledger_, storage);
    lineage_.commit(storage);
  }
  ledger_.became_source(storage);
  ledger_.count();
  ++counts_.commits;
  journal_.note(EventKind::commit, storage);
}

Storage* Commits::split(Storage& storage) {
  const Ledger::Change change(ledger_, storage);
  Storage* old = lineage_.split(storage);
  old->claims.driver_refers = true;
  return old;
}

void Commits::let_go(Storage& storage) {
  consider_orphan(storage);
  counts_.looks += trails_.died(storage);
}

void Commits::consider_orphan(Storage& storage) {
  if (storage.source() && !storage.held && storage.uses && storage.block) orphans_.add(storage);
}

void Commits::expect_back(Storage& storage, bool returns) {
  orphans_.expect_back(storage, returns);
  consider_orphan(storage);
}

void Commits::forgotten(Storage& storage) {
  orphans_.remove(storage);
  trails_.remove(storage);
}

void Commits::tend() {
  if (!orphans_.empty()) {
    orphans_.tend([this](Storage& source, std::size_t most) { return commit_dependents_if_cheap(source, most); });
  }
  trails_.tend([this](Storage& storage) { return cut_if_long(storage); });
}

void Commits::clear() {
  orphans_.clear();
  trails_.clear();
}

// Lets an orphan go by committing its dependents, if they are not much larger. Examples: a gradient
// after the optimizer has updated its moments; a batch of which only a prediction is left. If
// orphans take a large part of the bytes in use, larger dependents are committed too. Returns how
// many ops it visited.
std::size_t Commits::commit_dependents_if_cheap(Storage& source, std::size_t most) {
  constexpr Bytes kGoodPart = 8;
  std::vector<Storage*> dependents;
  const std::size_t seen = lineage_.held_dependents(source, dependents, most);
  counts_.looks += seen;
  if (seen > most) return seen;
  Bytes bytes = 0;
  for (const Storage* dependent : dependents) {
    if (dependent->absent()) return seen;
    bytes += dependent->bytes;
  }
  const bool many = orphans_.bytes() > ledger_.in_use() / kGoodPart;
  if (bytes > kNotMuchLarger * source.bytes && !(many && bytes <= orphans_.bytes())) return seen;
  for (Storage* dependent : dependents) commit(*dependent);
  return seen;
}

// Commits a storage with too long a trail. An absent storage is considered again when it is back.
// Returns how many ops it visited.
std::size_t Commits::cut_if_long(Storage& storage) {
  if (!storage.held || storage.absent()) return 0;
  const std::size_t most = Trails::longest(storage.bytes);
  const std::size_t seen = lineage_.trail(storage, most);
  counts_.looks += seen;
  if (seen > most) commit(storage);
  return seen;
}

Bytes Commits::sources_to_come(std::span<Storage* const> goals) {
  std::unordered_set<const Storage*> found;
  std::vector<Storage*> dependents;
  orphans_.each([&](Storage& source) {
    dependents.clear();
    if (lineage_.held_dependents(source, dependents, Orphans::kMost) > Orphans::kMost) return;
    Bytes bytes = 0;
    for (const Storage* dependent : dependents) bytes += dependent->bytes;
    if (bytes <= std::max(kNotMuchLarger * source.bytes, orphans_.most_bytes())) {
      found.insert(dependents.begin(), dependents.end());
    }
  });
  for (const Storage* storage : blocks_.held_absent()) {
    const std::size_t most = Trails::longest(storage->bytes);
    if (Trails::old(*storage) && lineage_.trail(*storage, most) > most) found.insert(storage);
  }
  for (const Storage* goal : goals) found.erase(goal);
  Bytes bytes = 0;
  for (const Storage* storage : found) {
    if (storage->producer && !storage->swappable() && !storage->claims.pins) bytes += arena_.round(storage->bytes);
  }
  return bytes;
}

}  // namespace coop
