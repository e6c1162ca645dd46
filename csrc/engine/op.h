// One leaf operator call that can be run again.
#pragma once

#include <span>

#include "engine/storage.h"
#include "engine/types.h"

namespace coop {

// One input of one op: a link in the storage's list of consumers, stored inside the op.
struct Edge {
  Storage* storage = nullptr;
  Op* op = nullptr;
  Edge* prev = nullptr;
  Edge* next = nullptr;
};

// How an op makes its first output.
enum class InPlace : std::uint8_t {
  no,           // in memory of its own
  on_old,       // in the memory of input 0, the old version, which loses its bytes
  from_scratch  // in memory that it is given and overwrites completely
};

// The lineage makes and drops ops. Inputs and outputs follow in the same piece of memory.
struct Op {
  void* recipe = nullptr;  // the driver's: tells how to run it again
  Seconds cost = 0;
  Bytes output_bytes = 0;
  Bytes target_bytes = 0;  // size of the first output, which may die before others; 0 unless in place
  Bytes need = 0;          // bytes needed to run it again, as last computed
  Bytes scratch = 0;       // bytes besides its outputs, packed, that it took when it ran
  std::uint32_t inputs_count = 0;
  std::uint32_t outputs_count = 0;
  std::uint32_t live_outputs = 0;  // outputs that still exist, resident or not
  std::uint32_t depth = 0;         // ops on the longest path from a source
  std::uint64_t number = 0;        // in the order of recording
  std::uint64_t oldest = 0;        // the oldest op of its trail (trails.h), or itself
  std::uint64_t stamp = 0;         // visited mark
  InPlace in_place = InPlace::no;
  bool waiting = false;  // Walk: it is to be run again

  Edge* inputs() { return reinterpret_cast<Edge*>(this + 1); }
  const Edge* inputs() const { return reinterpret_cast<const Edge*>(this + 1); }
  Storage** outputs() { return reinterpret_cast<Storage**>(inputs() + inputs_count); }
  Storage* const* outputs() const { return reinterpret_cast<Storage* const*>(inputs() + inputs_count); }

  std::span<Edge> edges() { return {inputs(), inputs_count}; }
  std::span<const Edge> edges() const { return {inputs(), inputs_count}; }
  // Null where a result has no storage, or that is gone.
  std::span<Storage* const> results() const { return {outputs(), outputs_count}; }

  // For an in-place op, includes the ops whose result it continues: the cost of the bytes as they
  // are now.
  Seconds cost_from_scratch() const {
    const Op* before = in_place == InPlace::on_old ? inputs()->storage->producer : nullptr;
    return before ? cost + before->cost_from_scratch() : cost;
  }
};

// Bytes needed at once to bring an absent storage back, as last computed.
inline Bytes need_of(const Storage& storage) {
  return storage.copy.page || !storage.producer ? storage.bytes : storage.producer->need;
}

}  // namespace coop
