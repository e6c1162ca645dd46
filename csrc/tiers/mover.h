// Carries bytes between the arena and a tier, on threads of its own: one for each direction, since what comes back is
// waited for and must not queue behind what leaves.
//
// Whoever waits for a transfer that has not begun does it himself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "engine/driver.h"
#include "tiers/tier.h"

namespace coop {

class Mover {
 public:
  explicit Mover(Tier& tier);
  // What has not begun is not done. Not in a forked process: see alone.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Tickets, from 1 on.
  std::uint32_t begin_out(const void* memory, Bytes bytes);
  std::uint32_t begin_in(std::uint32_t page, void* memory, Bytes bytes);
  // Returns when it is done, or when somebody else has finished it.
  void wait(std::uint32_t ticket);
  // Once for each ticket: if it is done.
  Transfer finish(std::uint32_t ticket);
  // True: it had not begun, and will not.
  bool cancel(std::uint32_t ticket);
  // In a forked process: the threads were never here, and what they wait on cannot be destroyed.
  bool alone() const;

 private:
  enum class State : std::uint8_t { waiting, running, done };
  struct Job {
    bool out;
    void* memory;  // is only read on the way out
    Bytes bytes;
    std::uint32_t page;
    State state = State::waiting;
    Seconds seconds = 0;
    Seconds waited = 0;
  };
  struct Worker {
    std::deque<std::uint32_t> queue;
    std::condition_variable more;
    std::thread thread;
  };

  std::uint32_t begin(const Job& job);
  void work(Worker& worker);
  void run(Job& job, std::unique_lock<std::mutex>& lock);

  Tier& tier_;
  const int owner_;  // the process: a forked one has no workers
  std::mutex mutex_;
  std::condition_variable done_;
  std::unordered_map<std::uint32_t, Job> jobs_;
  std::uint32_t last_ = 0;
  bool ending_ = false;
  Worker out_, in_;
};

}  // namespace coop
