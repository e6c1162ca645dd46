// The graph of ops and storages: who made what, from what.
//
// A storage lives while the program holds it, something claims it, or a recorded op reads it. An op
// lives while one of its outputs does. Dead ops are queued and released in small portions, without
// recursion: dropping a graph of any depth neither overflows the stack nor causes a pause.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "engine/cost.h"
#include "engine/op.h"
#include "engine/options.h"
#include "engine/pool.h"
#include "engine/storage.h"

namespace coop {

class Lineage {
 public:
  // `forget` is called for every storage that dies, `drop` for every op.
  Lineage(Stamps& stamps, Cost& cost, std::function<void(Storage&)> forget, std::function<void(Op&)> drop);
  ~Lineage();
  Lineage(const Lineage&) = delete;
  Lineage& operator=(const Lineage&) = delete;

  Storage* make_storage(Bytes bytes);
  // Outputs may contain null for results that have no storage.
  Op* make_op(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
              InPlace in_place);

  // For a storage that has been overwritten: makes its old version, which takes over the recipe and
  // the consumers.
  Storage* split(Storage& storage);
  // Ops that read `gone` read `same` from now on: it has the same bytes, and no op has read it yet.
  void replace(Storage& gone, Storage& same);
  void commit(Storage& storage);
  // Forgets the storage if it is unused. To be called whenever that may be so.
  void reconsider(Storage& storage);
  // Releases at most `portion` ops whose outputs are all gone. True when none are left.
  bool sweep(std::size_t portion);

  // Finds the storages for which the present value of this one may be needed: held, pinned or
  // locked ones that depend on it through storages that are none of these. Returns how many ops it
  // visited; beyond `most` it gives up.
  std::size_t held_dependents(Storage& storage, std::vector<Storage*>& found, std::size_t most = SIZE_MAX);
  // The length of a storage's trail: the ops behind it through storages that nobody holds, its own
  // included. Counts up to `most` + 1.
  std::size_t trail(const Storage& storage, std::size_t most);
  // The ops that recompute the goals that are evicted, in an order in which they can run.
  void missing(std::span<Storage* const> goals, std::vector<Op*>& order);
  // Sets each op's `need`: the bytes that it needs at once if its absent inputs are brought back
  // one after the other (Sethi and Ullman's numbers, in bytes).
  void find_needs(std::span<Op* const> order);

  std::size_t storages() const { return storages_.size(); }
  std::size_t ops() const { return ops_; }
  // Throws std::logic_error if counts and links disagree.
  void check(const Storage& storage) const;

 private:
  void unlink(Edge& edge);

  Stamps& stamps_;
  Cost& cost_;
  std::function<void(Storage&)> forget_;
  std::function<void(Op&)> drop_;
  Pool<Storage> storages_;
  std::deque<Op*> dying_;
  std::vector<Storage*> stack_;   // scratch of the walks
  std::vector<const Op*> trail_;  // likewise
  std::uint64_t next_id_ = 1, next_op_ = 1;
  std::size_t ops_ = 0;
};

}  // namespace coop
