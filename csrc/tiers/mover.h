// Copies bytes between the arena and a tier, on two threads: one for each direction, because the
// program waits for reads and they must not queue behind writes.
//
// A thread that waits for a transfer that has not begun does the transfer itself.
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
  // Drops the transfers that have not begun. Must not run in a forked process: see alone.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // They return tickets, from 1 on.
  std::uint32_t begin_out(const void* memory, Bytes bytes);
  std::uint32_t begin_in(std::uint32_t page, void* memory, Bytes bytes);
  // Returns when the transfer is done, or when another thread has finished it.
  void wait(std::uint32_t ticket);
  // The result, if the transfer is done. The ticket is then no longer valid.
  Transfer finish(std::uint32_t ticket);
  // True: the transfer had not begun, and will not.
  bool cancel(std::uint32_t ticket);
  // True in a forked process: there are no threads here, and what they waited on cannot be
  // destroyed.
  bool alone() const;

 private:
  enum class State : std::uint8_t { waiting, running, done };
  struct Job {
    bool out;
    void* memory;  // only read from if `out`
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
