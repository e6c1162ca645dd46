// A lock for sections of a few instructions that are almost never contended: half the price of a mutex.
#pragma once

#include <atomic>
#include <thread>

namespace coop {

class SpinLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) {
      // A search or a copy may take longer: let others work meanwhile.
      while (held_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
  }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace coop
