#include "engine/forecast.h"

#include <algorithm>
#include <vector>

#include "engine/chunk.h"

namespace coop {

namespace {
constexpr int kFar = 64;            // ops visited around one storage
constexpr double kOwnWeight = 0.5;  // weight of the latest observation of one storage
}  // namespace

void Forecast::born(Storage& storage) {
  changed_bytes_ += storage.bytes;
  if (!on_) return;
  history_.born(storage);
  expect_use(storage);
}

void Forecast::op_begins(std::span<Storage* const> inputs) {
  if (on_ && !std::exchange(logged_, true)) history_.used(inputs, clock_.ran);
}

bool Forecast::used(Storage& storage) {
  const bool read_ahead = std::exchange(storage.outlook.read_ahead, false);
  if (on_) expect_use(storage);
  return read_ahead;
}

void Forecast::became_absent(Storage& storage) {
  if (storage.copy.page) {
    if (on_) expect_use(storage);
    outside_.insert(&storage);
    changed_ = true;
  } else if (on_) {
    expect_need(storage);
  }
}

// --- what is learned ---------------------------------------------------------------------------------------------------

void Forecast::learn_from_write(Storage& storage, bool useful) {
  constexpr double kWeight = 0.05, kLeast = 0.1;
  if (!std::exchange(storage.outlook.written_ahead, false)) return;
  useful_ = std::max(useful_ + kWeight * (useful - useful_), kLeast);
  if (StepHistory::Lesson* own = history_.lesson(storage)) own->useful += kOwnWeight * (useful - own->useful);
}

void Forecast::learn_from_read(Storage& storage, double late) {
  StepHistory::Lesson* own = history_.lesson(storage);
  if (!own || !history_.known()) return;
  own->late = own->late ? *own->late + kOwnWeight * (late - *own->late) : late;
}

// --- what comes --------------------------------------------------------------------------------------------------------

// The next use is by the program, or to recompute a missing storage that the program uses.
void Forecast::expect_use(Storage& storage) {
  const Seconds ran = clock_.ran;
  const auto sooner = [&](Seconds& time, Seconds other) {
    if (other > ran) time = time > ran ? std::min(time, other) : other;
  };
  const StepHistory::Next next = history_.next(storage);
  Seconds when = next.idle > 0 ? ran + next.idle : 0, due = next.used ? when : 0;
  int looks = storage.price.missed ? kFar : 0;
  for (const Edge* edge = storage.consumers; edge && looks-- > 0; edge = edge->next) {
    for (const Storage* made : edge->op->results()) {
      if (!made || !made->price.missing) continue;
      sooner(when, made->outlook.next_use);
      sooner(due, made->outlook.due);
    }
  }
  set_next_use(storage, when, due);
}

// The storage is evicted and will be recomputed for its next use: its inputs are needed then.
void Forecast::expect_need(Storage& storage) {
  const Seconds ran = clock_.ran, when = storage.outlook.next_use, due = storage.outlook.due;
  if (!storage.price.missing || when <= ran) return;
  std::vector<Op*> ops{storage.producer};
  for (int looks = kFar; looks-- > 0 && !ops.empty();) {
    Op& op = *ops.back();
    ops.pop_back();
    for (const Edge& edge : op.edges()) {
      Storage& input = *edge.storage;
      if (input.foreign || (ran < input.outlook.next_use && input.outlook.next_use <= when)) continue;
      set_next_use(input, when, due > ran ? due : input.outlook.due);
      if (input.price.missing && input.producer) ops.push_back(input.producer);  // no producer: it is lost
    }
  }
}

void Forecast::set_next_use(Storage& storage, Seconds when, Seconds due) {
  const bool outside = storage.absent() && outside_.erase(&storage);
  storage.outlook.next_use = when;
  storage.outlook.due = due;
  storage.outlook.idle = std::max(when - clock_.ran, 0.0);  // rounded exactly as in searches
  if (outside) {
    outside_.insert(&storage);
    changed_ = true;
  }
  if (storage.outlook.idle > 0) got_cheaper(storage);
}

}  // namespace coop
