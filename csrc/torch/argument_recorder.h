// Writes the arguments of an op down, so that it can be run again.
//
// A tensor becomes its shape and the number of the storage that it views; small sources are kept by
// value. Operands that others may write to are recorded as copies of what they are now.
#pragma once

#include <vector>

#include "engine/op_call.h"
#include "torch/recipe.h"
#include "torch/scope.h"

namespace coop {

// One for each thread, its memory used over and over.
class ArgumentRecorder {
 public:
  void begin(Scope& scope, const OpInfo& info) {
    scope_ = &scope;
    info_ = &info;
    edges_.clear();
    snapshots_.clear();
  }
  // False: the op is not worth recording.
  bool take_snapshots(const OpCall& call);
  void forget_snapshots();
  // `target`: the storage that the op overwrites, null if there is none. `trains`: of a batch norm,
  // whose statistics are not part of its recipe.
  void write_down(const OpCall& call, Storage* target, bool trains, const torch::jit::Stack& stack);

  const Draft& draft() const { return draft_; }
  std::vector<Storage*>& edges() { return edges_; }  // what the recorded op reads
  InPlace in_place() const { return in_place_; }

 private:
  struct Place {
    std::int32_t edge;
    const void* value = nullptr;
    Bytes bytes = 0;
  };
  Place place_of(const at::Tensor& tensor);
  bool fills_all(const Storage& target, const torch::jit::Stack& stack) const;

  Scope* scope_ = nullptr;
  const OpInfo* info_ = nullptr;
  Draft draft_;
  std::vector<Storage*> edges_;
  std::vector<std::int32_t> edge_of_;  // for each operand: its edge, or a SpecialEdge
  std::vector<Storage*> snapshots_;    // for each operand: the copy that is recorded in its place, or null
  InPlace in_place_ = InPlace::no;
};

}  // namespace coop
