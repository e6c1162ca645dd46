#include "torch/in_flight.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/engine.h"

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
                   std::span<Storage* const> operands) {
  const c10::intrusive_ptr<c10d::Work> work = work_of(info, stack);
  if (!work || operands.empty()) return;
  engine.hold(operands);
  messages_.push_back({c10::weak_intrusive_ptr<c10d::Work>(work), {operands.begin(), operands.end()}});
  for (Storage* storage : operands) ++storage->borrowers;
}

void InFlight::end(Engine& engine, const Message& message) {
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
