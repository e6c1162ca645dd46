// The engine's lock. It covers bookkeeping and copies inside the arena. It is open while a kernel
// runs again and while a thread waits for a transfer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace coop {

// Spins for a moment, then sleeps: most critical sections are a few instructions, but a search or a
// copy may take longer. Unlocking wakes nobody, so that it is one store; sleeps are short instead.
class AdaptiveLock {
 public:
  void lock() {
    if (held_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      lock_slowly();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  void lock_slowly() {
    constexpr int kSpins = 64;
    constexpr std::chrono::microseconds kNap(50);
    for (int tries = 0;; ++tries) {
      while (held_.load(std::memory_order_relaxed)) {
        if (++tries <= kSpins) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(kNap);
        }
      }
      if (!held_.exchange(true, std::memory_order_acquire)) return;
    }
  }

  std::atomic<bool> held_{false};
};

class Gate {
 public:
  void lock() {
    mutex_.lock();
    ++entries_;
  }
  void unlock() { mutex_.unlock(); }

  // Opens the lock, which must be held, while `wait` runs. True: another thread has taken it
  // meanwhile, and anything may have changed.
  template <typename Wait>
  bool open_while(Wait wait) {
    const std::uint64_t before = entries_;
    struct Closed {
      Gate& gate;
      explicit Closed(Gate& of) : gate(of) { gate.mutex_.unlock(); }
      ~Closed() { gate.lock(); }
    };
    {
      const Closed closed(*this);
      wait();
    }
    return entries_ != before + 1;
  }

 private:
  AdaptiveLock mutex_;
  std::uint64_t entries_ = 0;
};

}  // namespace coop
