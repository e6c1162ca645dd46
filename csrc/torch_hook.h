// The hook into PyTorch: the CPU allocator and the dispatcher fallback that sees every leaf op.
#pragma once

#include <mutex>

namespace coop {

// Takes over the CPU allocator. Once, for the life of the process; it passes through while no scope is open.
void install_allocator();
// From here on, ops on this thread pass through the fallback / no longer do.
void manage_this_thread(bool on);
bool this_thread_is_managed();
// A kernel runs on this thread: its allocations fail with a Shortage, its nested ops are not ours.
bool inside_op();

// Locks without keeping others from the GIL meanwhile.
void lock_without_gil(std::recursive_mutex& mutex);

// Whoever runs an op, brings a storage back or ends the scope does so while no other thread does.
class Turn {
 public:
  Turn();
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
};
// While one of these lives, the turn is given up.
class Interlude {
 public:
  Interlude();
  ~Interlude();
  Interlude(const Interlude&) = delete;
  Interlude& operator=(const Interlude&) = delete;
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

}  // namespace coop
