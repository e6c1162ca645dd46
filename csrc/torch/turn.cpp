#include "torch/turn.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>

#include <new>

#include "torch/composite.h"
#include "torch/scope.h"

namespace coop {

namespace {
thread_local bool in_op __attribute__((tls_model("initial-exec"))) = false;
std::recursive_mutex turns;
}  // namespace

void manage_this_thread(bool on) {
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, on);
  c10::impl::tls_set_dispatch_key_included(kCompositeKey, on);
}

bool this_thread_is_managed() {
  return in_op || c10::impl::raw_local_dispatch_key_set.included().has(c10::DispatchKey::Fake);
}

bool inside_op() { return in_op; }

c10::DispatchKeySet seen_keys() { return c10::DispatchKeySet({c10::DispatchKey::Fake, kCompositeKey}); }

Turn::Turn() {
  if (!turns.try_lock()) lock_without_gil(turns);
}
Turn::~Turn() { turns.unlock(); }
TurnPause::TurnPause() { turns.unlock(); }
TurnPause::~TurnPause() {
  if (!turns.try_lock()) lock_without_gil(turns);
}

InsideOp::InsideOp() : before_(in_op) { in_op = true; }
InsideOp::~InsideOp() { in_op = before_; }

void watch_forks() {
  pthread_atfork(
      [] {
        if (!turns.try_lock()) lock_without_gil(turns);
        Scope::before_fork();
      },
      [] {
        Scope::after_fork();
        turns.unlock();
      },
      [] {
        Scope::after_fork();
        new (&turns) std::recursive_mutex;  // the old one is owned by a thread of the parent
      });
}

}  // namespace coop
