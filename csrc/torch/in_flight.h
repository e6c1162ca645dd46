// Collectives and messages of torch.distributed that are under way.
//
// A c10d op returns before its bytes have gone or come. Threads of the backend carry them, and a
// Work says when that is done. Until then every operand of the op stays in place. What the op
// writes is a source: it is never run again. What the backend makes for itself, on any thread, is
// not recorded either, and stays in place for as long as it lives.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/intrusive_ptr.h>

#include <span>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "torch/op_info.h"

namespace coop {

class Engine;
struct Storage;

// The collectives of one scope. Everything here is called in a turn.
class InFlight {
 public:
  // The op has returned. Its operands, which are entered, stay in place until its Work is done. No
  // Work: it is done.
  void add(Engine& engine, const OpInfo& info, const torch::jit::Stack& stack, std::span<Storage* const> operands,
           std::span<Storage* const> written);
  // Releases the operands of what is done. To be called often: there is no notification.
  void end_completed(Engine& engine) {
    if (!messages_.empty()) end_completed_slow(engine);
  }
  // There is no room: waits a moment for what is under way, because its operands are in the way.
  // Some of it may depend on what this thread does next, so what was waited for in vain is not
  // waited for again.
  void wait(Engine& engine);
  // The scope ends, but its memory stays while somebody refers to it. Operands of what is still
  // under way stay in place for life.
  void strand(Engine& engine);
  bool empty() const { return messages_.empty(); }

 private:
  // Where a storage lay, and its bytes if they are only read.
  struct Seen {
    Bytes offset = 0;
    std::uint64_t digest = 0;
    bool read_only = false;
  };
  // A Work without references counts as done.
  struct Message {
    c10::weak_intrusive_ptr<c10d::Work> work;
    std::vector<Storage*> storages;
    std::vector<Seen> seen = {};  // with checks of level 2: when it began, one for each storage
    bool done() const;
  };

  void end_completed_slow(Engine& engine);
  static void check(Engine& engine, const Message& message);
  static void end(Engine& engine, const Message& message);

  std::vector<Message> messages_;
  std::uint64_t begun_ = 0;    // messages so far
  std::uint64_t in_vain_ = 0;  // the last of those that were waited for in vain
};

// While one of these lives, a c10d op runs on this thread. The backend's threads that work for the
// op know it as well: PyTorch hands this kind of information on to them.
class InsideCollective {
 public:
  InsideCollective();
  // On this thread, now.
  static bool here();

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace coop
