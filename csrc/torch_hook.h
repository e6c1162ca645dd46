// The hook into PyTorch: the CPU allocator and the dispatcher fallback that sees every leaf op.
#pragma once

#include <mutex>

namespace coop {

// Takes over the CPU allocator. Once, for the life of the process; it passes through while no scope is open.
void install_allocator();
// From here on, ops on this thread pass through the fallback / no longer do.
void manage_this_thread(bool on);
bool this_thread_is_managed();

// Locks without keeping others from the GIL meanwhile.
void lock_without_gil(std::mutex& mutex);

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
