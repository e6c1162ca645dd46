// The protocol around an op: what a driver tells the engine, and in which order. The torch hook,
// the trace player and the tests' driver all go through it.
//
//     call.begin(engine, name)          a plan may have something to do before the op
//     call.add(storage, ...)            what it reads and writes, each storage once
//     call.enter()                      rule 5 holds for what it overwrites; operands are resident
//                                       and locked (rule 3)
//     call.copy_written()               without Options::in_place: copy on write
//     call.run(...)                     the kernel; if there is no room, memory is packed, then
//                                       emptied, and the kernel runs once more
//     call.record(...) or overwritten() the op is recorded, or what it wrote to is a source now
//     call.leave()
//     call.ran(cost, made)
//
// An exception from enter or before: give_up(). From later: overwritten(), leave().
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace coop {

class OpCall {
 public:
  // `update`: written to, but no part of the recipe, such as the statistics of a batch norm.
  enum class Access : std::uint8_t { read, write, update };

  void begin(Engine& engine, std::string_view name, bool planned = true) {
    engine_ = &engine;
    planned_ = planned;
    operands_.clear();
    written_.clear();
    updated_.clear();
    old_ = nullptr;
    passing_ = entering_ = false;
    if (planned_) engine_->before_planned(name);
  }

  // True: the storage was not an operand before. `parameter`: it is no source that passes by (see
  // recordable).
  bool add(Storage& storage, Access access, bool parameter) {
    const bool fresh = storage.slot >= operands_.size() || operands_[storage.slot] != &storage;
    if (fresh) {
      storage.slot = static_cast<std::uint32_t>(operands_.size());
      operands_.push_back(&storage);
    }
    if (access == Access::read) {
      passing_ = passing_ || (!parameter && storage.source() && storage.bytes > kByValueLimit);
    } else {
      std::vector<Storage*>& list = access == Access::write ? written_ : updated_;
      if (std::find(list.begin(), list.end(), &storage) == list.end()) list.push_back(&storage);
    }
    return fresh;
  }
  const std::vector<Storage*>& operands() const { return operands_; }
  const std::vector<Storage*>& written() const { return written_; }
  const std::vector<Storage*>& updated() const { return updated_; }
  // The one storage that the op writes to; null: none, or several.
  Storage* target() const { return written_.size() == 1 ? written_[0] : nullptr; }

  void enter() {
    if (updated_.empty()) {
      if (!written_.empty()) engine_->before_overwrite(written_);
    } else {
      std::vector<Storage*> all = written_;
      all.insert(all.end(), updated_.begin(), updated_.end());
      engine_->before_overwrite(all);
    }
    entering_ = true;
    engine_->enter(operands_);
    if (!written_.empty()) engine_->overwriting(written_);
    if (!updated_.empty()) engine_->overwriting(updated_);
  }
  // Everything before entering is done: rule 5 holds for what the op overwrites.
  bool entering() const { return entering_; }
  // The op does not run.
  void give_up() {
    for (Storage* storage : operands_) engine_->reconsider(*storage);
  }

  // Whether the op can be recorded. A storage that is updated in place from a source that passes by
  // (an optimizer's moments from a gradient) would keep that source and everything before it alive:
  // it becomes a source instead. So does the end of a long chain of versions, or of a lineage that
  // is too deep.
  bool recordable() const {
    const Options& options = engine_->options();
    const Storage* target = this->target();
    const bool renamed = target && target->producer && target->versions < options.max_versions && !passing_;
    return options.evict && (written_.empty() || renamed) && !engine_->too_deep(operands_);
  }

  // For runs without Options::in_place. `copied` is called for each storage that has moved to a
  // copy.
  template <typename Copied>
  void copy_written(Copied copied) {
    if (engine_->options().in_place) return;
    for (Storage* storage : written_) {
      if (!has_to_be_copied(*storage)) continue;
      drop_old();
      with_rescues([&] { old_ = engine_->copy_on_write(*storage); }, [] { return true; },
                   [&](Shortage& shortage, bool) {
                     Bytes copies = 0;  // of this storage and of those after it
                     for (const Storage* other : written_) copies += has_to_be_copied(*other) ? other->bytes : 0;
                     shortage.enough = std::max(shortage.enough, engine_->enough_for(operands_) + copies);
                   });
      copied(*storage);
    }
  }

  // `undo` restores the state before the kernel ran; false: that is impossible. `failed` gets the
  // shortage that is thrown, and whether the kernel was undone.
  template <typename Kernel, typename Undo, typename Failed>
  void run(Kernel kernel, Undo undo, Failed failed) {
    with_rescues(kernel, undo, failed);
  }
  // No kernel is running: the operands are pinned instead of locked while room is made, so that
  // they may be moved.
  void rescue(void (Engine::*make_room)()) {
    for (Storage* storage : operands_) engine_->pin(*storage);
    engine_->leave(operands_);
    (engine_->*make_room)();
    engine_->enter(operands_);
    for (Storage* storage : operands_) engine_->unpin(*storage);
  }

  // For an in-place op the first output is the target. With on_old, the first edge is its old
  // version.
  void record(void* recipe, Seconds cost, std::vector<Storage*>& edges, std::span<Storage* const> outputs,
              InPlace in_place) {
    if (in_place != InPlace::no) {
      if (!old_) old_ = engine_->split(*outputs[0]);
      if (in_place == InPlace::on_old) edges[0] = old_;
    }
    split_all(updated_);
    engine_->record(recipe, cost, edges, outputs, in_place);
    drop_old();
  }
  // The op is not recorded: the storages that it wrote to are sources now.
  void overwritten() {
    engine_->overwriting(written_);  // ops inside this one may have committed them: their copies are stale
    engine_->overwriting(updated_);
    split_all(written_);
    split_all(updated_);
    drop_old();
  }
  void leave() { engine_->leave(operands_); }
  void ran(Seconds cost, std::span<Storage* const> made) {
    engine_->ran(cost);
    if (planned_) engine_->after_planned(made, written_);
  }

  static constexpr Bytes kByValueLimit = 64;  // sources up to this size are copied into the recipe

 private:
  // If it is locked more than once, an op around this one knows its address: no copy.
  static bool has_to_be_copied(const Storage& storage) { return storage.producer && storage.claims.locks <= 1; }

  template <typename Work, typename Undo, typename Failed>
  void with_rescues(Work work, Undo undo, Failed failed) {
    for (int tries = 0;; ++tries) {
      try {
        work();
        return;
      } catch (Shortage& shortage) {
        const bool undone = engine_->options().rescue && undo();
        if (!undone || tries == 2) {
          failed(shortage, undone);
          throw;
        }
      }
      rescue(tries == 0 ? &Engine::pack : &Engine::compact);
      if (tries == 1) engine_->expect(Side::packed);  // as when its need is measured
    }
  }
  void split_all(const std::vector<Storage*>& storages) {
    for (Storage* storage : storages) {
      if (storage->producer) engine_->reconsider(*engine_->split(*storage));
    }
  }
  void drop_old() {
    if (old_) engine_->reconsider(*std::exchange(old_, nullptr));
  }

  Engine* engine_ = nullptr;
  // Each storage once. The vectors keep their memory from op to op.
  std::vector<Storage*> operands_;  // locked while the op runs
  std::vector<Storage*> written_, updated_;
  Storage* old_ = nullptr;  // the old version of the storage that was copied last
  bool passing_ = false;    // the op reads a source that is no parameter: a gradient, a batch
  bool entering_ = false;
  bool planned_ = true;  // an op of the program: a plan may know it
};

}  // namespace coop
