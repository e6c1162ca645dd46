// One op of the program, from the dispatcher to its kernel and back.
//
//   1. the storages of its operands are collected; leaves of autograd become sources
//   2. rule 5 holds for what it overwrites; operands are resident and locked (engine/op_call.h)
//   3. arguments are written down, if the op is worth recording
//   4. the kernel runs, nested ops unseen; if there is no room, memory is packed, then emptied,
//      and it runs once more
//   5. results become storages, and the op is recorded
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include "torch/op_info.h"
#include "torch/scope.h"

namespace coop {

void run_op(Scope& scope, OpInfo& info, c10::DispatchKeySet below, torch::jit::Stack& stack);

// Autograd is storing a gradient in its leaf, or adding to one on the way (between two nodes). Such
// a sum is committed: bringing it back would mean running most of the step again, term by term, and
// somebody will want it soon.
bool stores_gradient(const OpInfo& info);

}  // namespace coop
