// The graph of ops and storages: who made what, from what.
//
// A storage lives while somebody outside holds it, somebody claims it, or a recorded op reads it. An op lives while one
// of its outputs does. Releases are queued and worked off in small portions, without recursion, so that dropping a
// graph of any depth neither overflows the stack nor causes a pause.
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
  // `forget` is told of every storage that ceases to exist, `drop` of every op.
  Lineage(Stamps& stamps, Cost& cost, std::function<void(Storage&)> forget, std::function<void(Op&)> drop);
  ~Lineage();
  Lineage(const Lineage&) = delete;
  Lineage& operator=(const Lineage&) = delete;

  Storage* make_storage(Bytes bytes);
  // Outputs may contain null for results that are nobody's storage.
  Op* make_op(void* recipe, Seconds cost, std::span<Storage* const> inputs, std::span<Storage* const> outputs,
              InPlace in_place);

  // A new storage takes over recipe and consumers: the old version of one that has been overwritten.
  Storage* split(Storage& storage);
  void commit(Storage& storage);
  // To be called whenever a storage may have become unused.
  void reconsider(Storage& storage);
  // Releases at most `portion` ops whose outputs are all gone. True when none are left.
  bool sweep(std::size_t portion);

  // Everything that outside holders could need the present value of this storage for: held, pinned or locked storages
  // that depend on it through storages that are none of these. Returns how many ops it looked at: with more than `most`
  // it gives up.
  std::size_t held_dependents(Storage& storage, std::vector<Storage*>& found, std::size_t most = SIZE_MAX);
  // How many ops lie behind a storage through storages that nobody holds, its own included; counted up to `most` + 1.
  std::size_t trail(const Storage& storage, std::size_t most);
  // The ops that bring these back, as far as they are absent, in an order in which they can run.
  void missing(std::span<Storage* const> goals, std::vector<Op*>& order);
  // The bytes that each of these has to have at once to run, absent inputs brought back one after the other (Sethi and
  // Ullman's numbers, in bytes).
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
