// Which storages are sources: recording how a storage is made, and cutting lineages, on request or
// because of their cost.
//
// An orphan is a source that nobody holds: it is kept only because recorded ops read it. If the
// storages that depend on it are resident and not much larger, they are committed instead, and the
// orphan goes (decision 8). A storage with too many ops behind it for its size is committed as well
// (decision 17).
#pragma once

#include <span>

#include "engine/blocks.h"
#include "engine/lineage.h"
#include "engine/orphans.h"
#include "engine/trails.h"

namespace coop {

class Commits {
 public:
  Commits(Arena& arena, Ledger& ledger, Journal& journal, Lineage& lineage, Blocks& blocks, Trails& trails,
          Stats& counts)
      : arena_(arena),
        ledger_(ledger),
        journal_(journal),
        lineage_(lineage),
        blocks_(blocks),
        trails_(trails),
        counts_(counts) {}

  // An op has made these and can be run again: they are no longer sources.
  Op* record(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
             InPlace in_place);
  // Cuts the lineage of a resident storage: it is a source from now on.
  void commit(Storage& storage);
  // A recomputable storage has been overwritten. Returns its old version, which keeps the recipe
  // and the consumers. The storage itself is a source until the op that wrote it is recorded.
  Storage* split(Storage& storage);

  // The storage is no longer held.
  void let_go(Storage& storage);
  // Adds the storage to the orphans if it has become one.
  void consider_orphan(Storage& storage);
  // The program has dropped its bytes, and is expected to make the same ones again. Or no longer.
  void expect_back(Storage& storage, bool returns);
  void forgotten(Storage& storage);
  // To be called between ops, because the operands of a running op must not change. (Any thread may
  // drop a tensor at any time.)
  void tend();
  // Forgets all orphans and trails, at the end of a scope.
  void clear();

  // Bytes of storages that are recomputable here but could be sources in a larger budget. They were
  // absent when their orphan or their trail was looked at; had they been resident, they might have
  // been committed. Without the goals.
  Bytes sources_to_come(std::span<Storage* const> goals);

 private:
  std::size_t commit_dependents_if_cheap(Storage& source, std::size_t most);
  std::size_t cut_if_long(Storage& storage);

  Arena& arena_;
  Ledger& ledger_;
  Journal& journal_;
  Lineage& lineage_;
  Blocks& blocks_;
  Orphans orphans_;
  Trails& trails_;
  Stats& counts_;
};

}  // namespace coop
