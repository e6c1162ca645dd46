#include "simulate/ideal.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>

#include "simulate/ideal_graph.h"
#include "simulate/quotient.h"

namespace coop::ideal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rule 1.
void play_without_limit(const Program& program, Result& result) {
  Graph graph;
  Reader reader(program.code);
  std::int64_t used = 0;
  while (!reader.done()) {
    const std::int64_t kind = reader.number();
    if (kind == 0 || kind == 1) {
      const Op& op = graph.ops[kind == 0 ? graph.add_source(reader) : graph.add_op(reader)];
      result.baseline_cost += op.cost;
      for (Id i = 0; i < op.outputs; ++i) {
        Storage& storage = graph.storages[graph.tensors[op.first + i].storage];
        if (!storage.resident) used += storage.bytes;
        storage.resident = true;
      }
      result.baseline_peak = std::max(result.baseline_peak, used + op.scratch);
    } else {
      Storage& storage = graph.storages[graph.tensors[reader.id(graph.tensors.size())].storage];
      storage.references += kind == 2 ? 1 : -1;
      if (storage.references == 0) {
        used -= storage.bytes;
        storage.resident = false;
      }
    }
  }
}

class Player : private Graph {
 public:
  Player(std::int64_t budget, Policy policy, double patience)
      : budget_(budget),
        policy_(policy),
        patience_(patience),
        around_(storages, policy == Policy::dtr || policy == Policy::msps, policy == Policy::dtr_eq) {}

  void play(const Program& program, Result& result) {
    Reader reader(program.code);
    while (!reader.done() && status_ == Status::ok) {
      switch (reader.number()) {
        case 0:
          if (const Id op = add_source(reader); introduce(op)) pin(ops[op].first);
          break;
        case 1: introduce(add_op(reader)); break;
        case 2: ++storages[tensors[reader.id(tensors.size())].storage].references; break;
        case 3: release(tensors[reader.id(tensors.size())].storage); break;
        default: throw std::invalid_argument("the program has an instruction that does not exist");
      }
    }
    Reader last(program.last);
    while (!last.done() && status_ == Status::ok) {
      const Id tensor = last.id(tensors.size());
      if (tensors[tensor].defined || run(tensors[tensor].op, tensor, true)) pin(tensor);
    }
    result.status = status_;
    result.peak = peak_;
    result.evictions = evictions_;
    result.rematerialisations = rematerialisations_;
    if (result.baseline_cost > 0) result.overhead = Quotient{clock_, result.baseline_cost, 1}.value();
  }

 private:
  // An op that waits for its inputs.
  struct Waiting {
    Id op;
    Id tensor;            // the output that is needed; kNone: it has none
    bool again;           // it has run before
    std::size_t missing;  // index in missing_ of its next missing input; `end` is past its last
    std::size_t end;
  };

  // Links a new op to its neighbours, then runs it.
  bool introduce(Id id) {
    const Op& op = ops[id];
    for (Id i = 0; i < op.outputs; ++i) {
      const Id storage = tensors[op.first + i].storage;
      const bool new_storage = storages[storage].tensors.front() == op.first + i;
      if (new_storage) around_.born(storage);
      charge(id, storage, new_storage);
      connect(op, storage, new_storage);
    }
    if (!run(id, op.outputs ? op.first : kNone, false)) return false;
    around_.settled();
    for (Id i = 0; i < op.outputs; ++i) storages[tensors[op.first + i].storage].touched = clock_;
    return true;
  }

  // Rule 3.
  void charge(Id id, Id storage, bool new_storage) {
    Storage& home = storages[storage];
    if (home.last_op == id || ops[id].cost == 0) return;
    home.last_op = id;
    if (!new_storage) around_.cost_grows(storage);
    home.cost += ops[id].cost;
  }

  void connect(const Op& op, Id storage, bool new_storage) {
    linked_.clear();
    for (const Id input : op.inputs) {
      const Id from = tensors[input].storage;
      if (from == storage || std::find(linked_.begin(), linked_.end(), from) != linked_.end()) continue;
      linked_.push_back(from);
      around_.connect(from, storage, new_storage);
    }
  }

  // Rule 5, without recursion: a chain of evicted storages can be as long as the trace.
  bool run(Id id, Id tensor, bool again) {
    waiting_.clear();
    missing_.clear();
    await(id, tensor, again);
    at_once_ = !again && missing_.empty();
    while (!waiting_.empty()) {
      Waiting& top = waiting_.back();
      if (top.missing < top.end) {
        const Id input = missing_[top.missing];
        if (tensors[input].defined) {
          lock(tensors[input].storage);
          ++top.missing;
        } else {
          await(tensors[input].op, input, true);
        }
        continue;
      }
      const Waiting ready = top;
      const Op& op = ops[ready.op];
      if (!make_room(op.bytes + op.scratch)) return false;
      compute(op, ready);
      for (const Id input : op.inputs) unlock(tensors[input].storage);
      if (static_cast<double>(recomputed_) > patience_) {
        status_ = Status::thrash;
        return false;
      }
      waiting_.pop_back();
      missing_.resize(waiting_.empty() ? 0 : waiting_.back().end);
    }
    return true;
  }

  void await(Id id, Id tensor, bool again) {
    const std::vector<Id>& inputs = ops[id].inputs;
    const std::size_t begin = missing_.size();
    for (const Id input : inputs) storages[tensors[input].storage].touched = clock_;
    for (const Id input : inputs) {
      if (tensors[input].defined) {
        lock(tensors[input].storage);
      } else {
        missing_.push_back(input);
      }
    }
    waiting_.push_back({id, tensor, again, begin, missing_.size()});
  }

  // Rule 4. The needed output joins the pool after the others.
  void compute(const Op& op, const Waiting& ready) {
    clock_ += op.cost;
    used_ += op.bytes;
    peak_ = std::max(peak_, used_ + op.scratch);
    if (ready.again) recomputed_ += op.cost;
    arrived_.clear();
    for (Id tensor = op.first; tensor < op.first + op.outputs; ++tensor) {
      if (tensor != ready.tensor) define(tensor);
    }
    if (ready.tensor != kNone) define(ready.tensor);
    for (const Id storage : arrived_) join(storage);
    if (ready.again) rematerialisations_ += static_cast<std::int64_t>(arrived_.size());
    around_.made_resident(arrived_, at_once_);
  }

  void define(Id id) {
    Tensor& tensor = tensors[id];
    if (tensor.defined) {
      used_ -= tensor.bytes;
      return;
    }
    tensor.defined = true;
    Storage& storage = storages[tensor.storage];
    if (!storage.resident) arrived_.push_back(tensor.storage);
    storage.resident = true;
  }

  bool make_room(std::int64_t bytes) {
    while (used_ + bytes > budget_) {
      const Id storage = choose();
      if (storage == kNone) {
        status_ = Status::out_of_memory;
        return false;
      }
      ++evictions_;
      evict(storage);
    }
    return true;
  }

  void evict(Id id) {
    Storage& storage = storages[id];
    storage.resident = false;
    used_ -= storage.bytes;
    leave(id);
    for (const Id tensor : storage.tensors) tensors[tensor].defined = false;
    around_.evicted(id);
  }

  // Rule 2.
  void release(Id id) {
    Storage& storage = storages[id];
    if (--storage.references == 0 && storage.resident && !storage.pinned) evict(id);
  }

  void pin(Id tensor) {
    const Id storage = tensors[tensor].storage;
    if (storages[storage].pinned) return;
    lock(storage);
    storages[storage].pinned = true;
  }

  void lock(Id storage) {
    if (storages[storage].locks++ == 0) leave(storage);
  }

  void unlock(Id storage) {
    if (--storages[storage].locks == 0) join(storage);
  }

  // The pool: resident storages that are not locked, the one that joined last at the end.
  void join(Id id) {
    Storage& storage = storages[id];
    storage.prev = back_;
    storage.next = kNone;
    (back_ == kNone ? front_ : storages[back_].next) = id;
    back_ = id;
  }

  void leave(Id id) {
    const Storage& storage = storages[id];
    (storage.prev == kNone ? front_ : storages[storage.prev].next) = storage.next;
    (storage.next == kNone ? back_ : storages[storage.next].prev) = storage.prev;
  }

  // Rule 6.
  Id choose() {
    if (policy_ == Policy::lru) return choose_oldest();
    const double bound = refresh_the_likely();
    Id best = kNone;
    double least = kInfinity;
    for (Id id = front_; id != kNone; id = storages[id].next) {
      const Quotient score = score_of(id);
      // The exact value is expensive to compute, and most scores are far above the lowest.
      if (score.numerator != 0 && score.surely_above(std::min(bound, least))) continue;
      const double value = score.value();
      if (value <= least) {
        least = value;
        best = id;
      }
      if (value == 0) break;
    }
    return best;
  }

  // Walks the stale regions that may matter. A stale storage's score lacks the evicted storages
  // above it, so it can only be too low. Returns an upper bound of the lowest score.
  double refresh_the_likely() {
    double bound = kInfinity;
    if (policy_ != Policy::dtr && policy_ != Policy::msps) return bound;
    stale_.clear();
    for (Id id = front_; id != kNone; id = storages[id].next) {
      const double score = score_of(id).roughly();
      if (storages[id].stale) {
        stale_.emplace_back(score, id);
      } else {
        bound = std::min(bound, score);
      }
    }
    // The lowest first. A heap, because only a few are visited.
    std::make_heap(stale_.begin(), stale_.end(), std::greater<>());
    while (!stale_.empty() && !Quotient::surely_above(stale_.front().first, bound)) {
      around_.refresh(stale_.front().second);
      bound = std::min(bound, score_of(stale_.front().second).roughly());
      std::pop_heap(stale_.begin(), stale_.end(), std::greater<>());
      stale_.pop_back();
    }
    return bound;
  }

  Quotient score_of(Id id) {
    const Storage& storage = storages[id];
    return {cost_of(id, storage), storage.bytes, policy_ == Policy::msps ? 1 : clock_ - storage.touched};
  }

  Id choose_oldest() const {
    Id best = front_;
    for (Id id = front_; id != kNone; id = storages[id].next) {
      if (storages[id].touched <= storages[best].touched) best = id;
    }
    return best;
  }

  std::int64_t cost_of(Id id, const Storage& storage) {
    switch (policy_) {
      case Policy::dtr: return storage.cost + above(storage) + storage.evicted[static_cast<std::size_t>(Way::down)];
      case Policy::dtr_eq: return storage.cost + around_.components_around(id);
      case Policy::msps: return storage.cost + above(storage);
      default: return storage.cost;
    }
  }

  static std::int64_t above(const Storage& storage) {
    return storage.stale ? 0 : storage.evicted[static_cast<std::size_t>(Way::up)];
  }

  const std::int64_t budget_;
  const Policy policy_;
  const double patience_;
  Surroundings around_;
  Status status_ = Status::ok;
  std::int64_t clock_ = 1;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t recomputed_ = 0;
  std::int64_t evictions_ = 0;
  std::int64_t rematerialisations_ = 0;
  Id front_ = kNone;
  Id back_ = kNone;
  bool at_once_ = false;  // the running op is new, and all its inputs were resident
  std::vector<Waiting> waiting_;
  std::vector<Id> missing_, arrived_, linked_;
  std::vector<std::pair<double, Id>> stale_;
};

}  // namespace

Policy policy_named(const std::string& name) {
  if (name == "dtr") return Policy::dtr;
  if (name == "dtr-eq") return Policy::dtr_eq;
  if (name == "dtr-local") return Policy::dtr_local;
  if (name == "msps") return Policy::msps;
  if (name == "lru") return Policy::lru;
  throw std::invalid_argument("unknown policy '" + name + "'; the known ones are dtr, dtr-eq, dtr-local, msps, lru");
}

const char* name(Status status) {
  switch (status) {
    case Status::ok: return "ok";
    case Status::out_of_memory: return "out_of_memory";
    case Status::thrash: return "thrash";
  }
  return "";
}

Result play(const Program& program, std::variant<std::int64_t, double> budget, Policy policy, double limit) {
  Result result;
  play_without_limit(program, result);
  if (const double* share = std::get_if<double>(&budget)) {
    result.budget = static_cast<std::int64_t>(static_cast<double>(result.baseline_peak) * *share);
  } else {
    result.budget = std::get<std::int64_t>(budget);
  }
  Player player(result.budget, policy, static_cast<double>(result.baseline_cost) * (limit - 1));
  player.play(program, result);
  return result;
}

}  // namespace coop::ideal
