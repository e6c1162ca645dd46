// The graph that the ideal simulator builds while it reads a program: tensors, the ops that made
// them, their storages.
#pragma once

#include <limits>
#include <stdexcept>
#include <utility>

#include "simulate/ideal.h"
#include "simulate/surroundings.h"

namespace coop::ideal {

struct Tensor {
  Id op;
  Id storage;
  std::int64_t bytes;  // 0: a view
  bool defined = false;
};

struct Op {
  std::int64_t cost = 0;
  std::int64_t bytes = 0;  // of all its outputs
  std::int64_t scratch = 0;
  std::vector<Id> inputs;  // tensors
  Id first = kNone;        // tensor; the other outputs follow it
  Id outputs = 0;
};

// Reads a program's code. Throws if it is cut off or has a number that is out of range.
class Reader {
 public:
  explicit Reader(const std::vector<std::int64_t>& code) : code_(code) {}

  bool done() const { return at_ == code_.size(); }
  std::int64_t number() {
    if (done()) throw std::invalid_argument("the program is cut off");
    return code_[at_++];
  }
  std::int64_t amount() { return within(std::numeric_limits<std::int64_t>::max()); }
  Id id(std::size_t count) { return static_cast<Id>(within(static_cast<std::int64_t>(count) - 1)); }

 private:
  std::int64_t within(std::int64_t most) {
    const std::int64_t value = number();
    if (value < 0 || value > most) throw std::invalid_argument("the program has a number that is out of range");
    return value;
  }

  const std::vector<std::int64_t>& code_;
  std::size_t at_ = 0;
};

// What the baseline and the player under a budget share: tensors, ops and storages, added as they
// are read.
class Graph {
 public:
  // Both return the op just read. Its outputs have one reference each.
  Id add_source(Reader& reader) {
    Op op;
    op.bytes = reader.amount();
    op.first = static_cast<Id>(tensors.size());
    op.outputs = 1;
    ops.push_back(std::move(op));
    add_tensor(last_op(), ops.back().bytes, add_storage(ops.back().bytes));
    return last_op();
  }

  Id add_op(Reader& reader) {
    Op op;
    op.cost = reader.amount();
    op.scratch = reader.amount();
    const std::int64_t inputs = reader.amount();
    op.outputs = static_cast<Id>(reader.amount());
    for (std::int64_t i = 0; i < inputs; ++i) op.inputs.push_back(reader.id(tensors.size()));
    op.first = static_cast<Id>(tensors.size());
    ops.push_back(std::move(op));
    Op& added = ops.back();
    for (Id i = 0; i < added.outputs; ++i) {
      const std::int64_t bytes = reader.amount();
      const std::int64_t alias = reader.number();
      if (alias < -1 || alias >= inputs) throw std::invalid_argument("an output shares the storage of no input");
      const bool fresh = alias < 0;
      added.bytes += fresh ? bytes : 0;
      const Id storage = fresh ? add_storage(bytes) : tensors[added.inputs[static_cast<std::size_t>(alias)]].storage;
      add_tensor(last_op(), fresh ? bytes : 0, storage);
    }
    return last_op();
  }

  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  std::vector<Storage> storages;

 private:
  Id last_op() const { return static_cast<Id>(ops.size() - 1); }

  Id add_storage(std::int64_t bytes) {
    storages.emplace_back().bytes = bytes;
    return static_cast<Id>(storages.size() - 1);
  }

  void add_tensor(Id op, std::int64_t bytes, Id storage) {
    Storage& home = storages[storage];
    home.tensors.push_back(static_cast<Id>(tensors.size()));
    ++home.references;
    tensors.push_back({op, storage, bytes});
  }
};

}  // namespace coop::ideal
