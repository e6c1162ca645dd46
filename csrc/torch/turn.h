// Threads of the program: which are managed, whose turn it is, and whether a kernel runs.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include <mutex>

namespace coop {

// From here on, ops on this thread pass through the fallback / no longer do.
void manage_this_thread(bool on);
// A thread is managed if its ops come here: what PyTorch hands on to other threads, keys among it,
// makes those managed too.
bool this_thread_is_managed();
// A kernel runs on this thread: its allocations fail with a Shortage, its nested ops are not ours.
bool inside_op();
// Ops inside of a kernel are not seen: while one runs, these keys are excluded.
c10::DispatchKeySet seen_keys();

// Locks without keeping others from the GIL meanwhile.
void lock_without_gil(std::recursive_mutex& mutex);

// Managed threads take turns, one op at a time: a replay borrows the global random state. A thread
// that runs an op, brings a storage back or ends the scope does so while no other thread does.
class Turn {
 public:
  Turn();
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
};
// While one of these lives, the turn is given up.
class TurnPause {
 public:
  TurnPause();
  ~TurnPause();
  TurnPause(const TurnPause&) = delete;
  TurnPause& operator=(const TurnPause&) = delete;
};

// While one of these lives, a kernel runs on this thread.
class InsideOp {
 public:
  InsideOp();
  ~InsideOp();
  InsideOp(const InsideOp&) = delete;
  InsideOp& operator=(const InsideOp&) = delete;

 private:
  bool before_;
};

// A fork happens in the turn of the thread that forks: the child finds no lock held, and no
// transfer under way, by threads that it does not have. To be called once.
void watch_forks();

}  // namespace coop
