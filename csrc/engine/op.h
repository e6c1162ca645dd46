// One leaf operator call that can be run again.
#pragma once

#include <span>

#include "engine/storage.h"
#include "engine/types.h"

namespace coop {

// One storage that one op reads: a link of the storage's list of consumers, kept inside the op.
struct Edge {
  Storage* storage = nullptr;
  Op* op = nullptr;
  Edge* prev = nullptr;
  Edge* next = nullptr;
};

// How an op makes its first output.
enum class InPlace : std::uint8_t {
  no,           // in memory of its own
  on_old,       // in the memory of input 0, the old version, which is gone afterwards
  from_scratch  // in memory it is given and overwrites completely
};

// The lineage makes and drops it. Inputs and outputs follow it in the same piece of memory.
struct Op {
  void* recipe = nullptr;  // the driver's: how to run it again
  Seconds cost = 0;
  Bytes output_bytes = 0;
  Bytes target_bytes = 0;  // of the first output, which may be gone while others live; 0 unless in place
  Bytes need = 0;          // to run it again, as last found
  Bytes scratch = 0;       // beyond its outputs, packed, as it took when it ran
  std::uint32_t inputs_count = 0;
  std::uint32_t outputs_count = 0;
  std::uint32_t live_outputs = 0;  // outputs that still exist, resident or not
  std::uint32_t depth = 0;         // ops on the longest path from a source
  std::uint64_t number = 0;        // in the order of recording
  std::uint64_t oldest = 0;        // of the ops behind it through storages that nobody holds; at the latest, itself
  std::uint64_t stamp = 0;         // visited mark
  InPlace in_place = InPlace::no;
  bool waiting = false;  // to be run again: the walk's

  Edge* inputs() { return reinterpret_cast<Edge*>(this + 1); }
  const Edge* inputs() const { return reinterpret_cast<const Edge*>(this + 1); }
  Storage** outputs() { return reinterpret_cast<Storage**>(inputs() + inputs_count); }
  Storage* const* outputs() const { return reinterpret_cast<Storage* const*>(inputs() + inputs_count); }

  std::span<Edge> edges() { return {inputs(), inputs_count}; }
  std::span<const Edge> edges() const { return {inputs(), inputs_count}; }
  // Null where a result is nobody's storage, or gone.
  std::span<Storage* const> results() const { return {outputs(), outputs_count}; }

  // An op in place and those whose result it continues: what the bytes as they are now have cost.
  Seconds cost_from_scratch() const {
    const Op* before = in_place == InPlace::on_old ? inputs()->storage->producer : nullptr;
    return before ? cost + before->cost_from_scratch() : cost;
  }
};

// Bytes that bringing an absent storage back takes at once, as last found.
inline Bytes need_of(const Storage& storage) {
  return storage.copy.page || !storage.producer ? storage.bytes : storage.producer->need;
}

}  // namespace coop
