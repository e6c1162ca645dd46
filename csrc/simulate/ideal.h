// The ideal simulator: it counts bytes, without addresses, and plays a trace as DTR's own simulator
// does ("Dynamic Tensor Rematerialization", Kirisame et al., ICLR 2021; the public log format and
// its meaning). It shares nothing with the engine. It reproduces published figures, with their
// rules and their quirks.
//
//   1. Baseline: no limit. A storage is freed for good when nothing refers to it any more, sources
//      too.
//   2. Under a budget, a storage that nobody holds is evicted at once; it can always be recomputed.
//      Sources stay.
//   3. A storage's views leave with it, and the op of each view is timed again. The cost of a
//      storage is that of the distinct ops that made its tensors.
//   4. An op needs room for all its outputs. Outputs that were still resident are dropped as soon
//      as it has run.
//   5. To run an op: touch all inputs, lock the resident ones, bring back and lock the others in
//      order, make room, run, unlock in order.
//   6. The storage with the lowest score leaves; of equal ones, the one that joined the pool last.
//      A score of exactly zero ends the search.
//   7. The clock starts at 1. A result is touched when it is first computed, not later.
//   8. The evicted storages around a storage are updated step by step: see surroundings.h.
//   9. At the end everything still held is brought back and pinned, one tensor after another.
//
// In-place ops are copy on write: their new versions are storages of their own.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace coop::ideal {

enum class Policy : std::uint8_t { dtr, dtr_eq, dtr_local, msps, lru };
enum class Status : std::uint8_t { ok, out_of_memory, thrash };

Policy policy_named(const std::string& name);  // throws std::invalid_argument
const char* name(Status status);

struct Result {
  Status status = Status::ok;
  double overhead = 1;  // final clock / time without a limit
  std::int64_t budget = 0;
  std::int64_t peak = 0;
  std::int64_t evictions = 0;           // storages that left to make room
  std::int64_t rematerialisations = 0;  // storages brought back
  std::int64_t baseline_peak = 0;
  std::int64_t baseline_cost = 0;
};

// The instructions of a trace, one after another in one array:
//   0, bytes                                                        a source
//   1, cost, scratch, inputs, outputs, tensor..., (bytes, alias)... an op; alias: an input, or -1
//   2, tensor                                                       one reference more
//   3, tensor                                                       one reference less
// and `last`, the tensors still held at the end, in the order in which they are brought back.
struct Program {
  std::vector<std::int64_t> code;
  std::vector<std::int64_t> last;
};

// The budget in bytes, or as a share of the baseline's peak. More than `limit` times the baseline's
// time is thrashing.
Result play(const Program& program, std::variant<std::int64_t, double> budget, Policy policy, double limit);

}  // namespace coop::ideal
