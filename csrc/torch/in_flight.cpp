#include "torch/in_flight.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/engine.h"
#include "torch/turn.h"

namespace coop {
namespace {

constexpr std::string_view kName = "coop: inside a collective";
constexpr c10::DebugInfoKind kInside(&kName);
std::atomic<bool> ever_inside{false};

struct Mark final : c10::DebugInfoBase {};

// Null: the op has none. Its results are on top of the stack.
c10::intrusive_ptr<c10d::Work> work_of(const OpInfo& info, const torch::jit::Stack& stack) {
  for (std::size_t i = stack.size() - info.returns; i < stack.size(); ++i) {
    if (!stack[i].isObject()) continue;
    const auto object = stack[i].toObject();
    if (object->slots().empty() || !object->getSlot(0).isCapsule()) continue;
    return c10::static_intrusive_pointer_cast<c10d::Work>(object->getSlot(0).toCapsule());
  }
  return {};
}

}  // namespace

// --- messages ----------------------------------------------------------------------------------------------------------

bool InFlight::Message::done() const {
  const c10::intrusive_ptr<c10d::Work> alive = work.lock();
  return !alive || alive->isCompleted();
}

void InFlight::add(Engine& engine, const OpInfo& info, const torch::jit::Stack& stack,
                   std::span<Storage* const> operands, std::span<Storage* const> written) {
  const c10::intrusive_ptr<c10d::Work> work = work_of(info, stack);
  if (!work || operands.empty()) return;
  engine.hold(operands);
  ++begun_;
  messages_.push_back({c10::weak_intrusive_ptr<c10d::Work>(work), {operands.begin(), operands.end()}});
  for (Storage* storage : operands) {
    ++storage->borrowers;
    if (engine.options().checks < 2) continue;
    Seen seen;
    seen.read_only = std::find(written.begin(), written.end(), storage) == written.end();
    if (storage->block) {
      seen.offset = storage->block->offset;
      if (seen.read_only) seen.digest = engine.driver().digest(seen.offset, storage->bytes);
    }
    messages_.back().seen.push_back(seen);
  }
}

// With checks of level 2: nobody has moved or changed what a backend's threads point to.
void InFlight::check(Engine& engine, const Message& message) {
  for (std::size_t i = 0; i < message.seen.size(); ++i) {
    const Storage& storage = *message.storages[i];
    const Seen& seen = message.seen[i];
    if (storage.foreign) continue;
    if (!storage.block || storage.block->offset != seen.offset) {
      engine.broken("rule 3: a storage left its place while a collective was under way");
    } else if (seen.read_only && engine.driver().digest(seen.offset, storage.bytes) != seen.digest) {
      engine.broken("bytes that a collective sends were overwritten before it was done");
    }
  }
}

void InFlight::end(Engine& engine, const Message& message) {
  check(engine, message);
  for (Storage* storage : message.storages) --storage->borrowers;
  engine.arrived(message.storages);
}

void InFlight::end_completed_slow(Engine& engine) {
  for (std::size_t i = 0; i < messages_.size();) {
    if (!messages_[i].done()) {
      ++i;
      continue;
    }
    const Message message = std::exchange(messages_[i], std::move(messages_.back()));
    messages_.pop_back();
    end(engine, message);
  }
}

void InFlight::wait(Engine& engine) {
  using SteadyClock = std::chrono::steady_clock;
  constexpr auto kMoment = std::chrono::milliseconds(50);
  const auto end = SteadyClock::now() + kMoment;
  end_completed(engine);
  while (!messages_.empty() && begun_ != in_vain_) {
    if (SteadyClock::now() > end) {
      in_vain_ = begun_;
      return;
    }
    {
      const TurnPause pause;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    end_completed(engine);
  }
}

void InFlight::strand(Engine& engine) {
  end_completed(engine);
  for (const Message& message : std::exchange(messages_, {})) {
    for (Storage* storage : message.storages) {
      if (storage->held && storage->block) engine.expose(*storage);
    }
    end(engine, message);
  }
}

// --- inside of one -----------------------------------------------------------------------------------------------------

InsideCollective::InsideCollective() : guard_(kInside, std::make_shared<Mark>()) {
  ever_inside.store(true, std::memory_order_relaxed);
}

bool InsideCollective::here() {
  return ever_inside.load(std::memory_order_relaxed) && c10::ThreadLocalDebugInfo::get(kInside) != nullptr;
}

}  // namespace coop
