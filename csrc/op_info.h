// What the hook needs to know of an operator, read once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "types.h"

namespace coop {

struct ArgumentInfo {
  enum class Kind : std::uint8_t { other, tensor, tensor_list, generator };
  Kind kind = Kind::other;
  bool written = false;
  bool taken = false;  // the kernel takes the value off the stack: a second try needs a copy of it
};

struct OpInfo {
  enum class Kind : std::uint8_t {
    pass,      // made of other ops, which come here themselves; or touches no data
    view,      // returns views, or changes a tensor's shape: reads and writes no data
    reshape,   // may replace a tensor's storage: resize_, set_
    compute,   // reads, and returns something new
    overwrite  // writes into arguments
  };

  explicit OpInfo(const c10::OperatorHandle& handle);

  c10::OperatorHandle op;
  std::string name;
  std::vector<ArgumentInfo> arguments;
  Kind kind = Kind::compute;
  bool replayable = true;  // a pure function of its arguments and of the random state
  bool random = false;
  bool shape_only = false;     // looks at its tensors' shapes, not at their bytes: zeros_like
  bool factory = false;        // no tensor's bytes go in
  bool unset = false;          // leaves its output's bytes undefined: empty
  bool fills = false;          // in place, and does not read what it overwrites: zero_
  bool accumulates = false;    // one of the ops by which autograd stores a gradient in its leaf
  bool batch_norm = false;     // writes running statistics although its schema may not say so
  int training_argument = -1;  // of a batch norm: its results depend on the statistics only if this is false
  bool batch_norm_always_trains = false;
  int statistics = 0;  // the index of the first of the two running statistics
  std::size_t returns = 0;
  double density = 0;  // measured, seconds per byte of output; moving average, 0: not known yet

  // A single measurement says as much about the machine's other work as about the op. This follows the fast runs of
  // this op with this much output: down at once, up slowly.
  Seconds typical_cost(Bytes output_bytes, Seconds measured);

  static OpInfo& of(const c10::OperatorHandle& op);

 private:
  struct Typical {
    Bytes bytes = 0;
    Seconds cost = 0;
  };
  std::vector<Typical> typical_;  // direct-mapped by output size
};

}  // namespace coop
