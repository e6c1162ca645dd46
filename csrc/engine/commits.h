// What is a source: recording how a storage is made, and cutting lineages, when asked to and by cost.
//
// A source that nobody holds is kept only for what was made from it: an orphan. Where that is resident and not much
// larger, it is committed instead, and the orphan goes (decision 8). A storage with too many ops behind it for its size
// is committed as well (decision 17).
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

  // An op has made these, and can be run again: they are no sources any more.
  Op* record(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
             InPlace in_place);
  // It is resident, and a source from now on.
  void commit(Storage& storage);
  // A recomputable storage has been overwritten: the old version, which is returned, keeps the recipe and the consumers.
  // The storage itself is a source until a record tells how it was made.
  Storage* split(Storage& storage);

  // Nobody holds it any more.
  void let_go(Storage& storage);
  // It may be a source that only the lineage refers to.
  void consider_orphan(Storage& storage);
  void forgotten(Storage& storage);
  // Between ops: any thread may let go, and what the running op reads or overwrites must not change under its hands.
  void tend();
  // At the end.
  void clear();

  // Bytes of storages that may be sources when the program comes here in another budget: what was absent in this one
  // when its orphan, or its trail, was looked at may have been resident, and have been committed. Without the goals.
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
