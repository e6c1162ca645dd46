#include "tiers/mover.h"

#include <unistd.h>

#include <chrono>
#include <new>
#include <system_error>

namespace coop {

namespace {
using SteadyClock = std::chrono::steady_clock;
Seconds since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}
}  // namespace

Mover::Mover(Tier& tier) : tier_(tier), owner_(getpid()) {}

Mover::~Mover() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  for (Worker* worker : {&out_, &in_}) {
    worker->more.notify_all();
    if (worker->thread.joinable()) worker->thread.join();
  }
}

bool Mover::alone() const { return getpid() != owner_; }

std::uint32_t Mover::begin_out(const void* memory, Bytes bytes) {
  return begin({.out = true, .memory = const_cast<void*>(memory), .bytes = bytes, .page = 0});
}

std::uint32_t Mover::begin_in(std::uint32_t page, void* memory, Bytes bytes) {
  return begin({.out = false, .memory = memory, .bytes = bytes, .page = page});
}

std::uint32_t Mover::begin(const Job& job) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!alone()) lock.lock();
  if (++last_ == 0) ++last_;
  const std::uint32_t ticket = last_;
  jobs_[ticket] = job;
  if (!lock) return ticket;
  Worker& worker = job.out ? out_ : in_;
  worker.queue.push_back(ticket);
  if (!worker.thread.joinable()) {
    try {
      worker.thread = std::thread([this, &worker] { work(worker); });
    } catch (const std::system_error&) {  // no more threads: the thread that waits will do the transfer
    }
  }
  worker.more.notify_one();
  return ticket;
}

void Mover::work(Worker& worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    worker.more.wait(lock, [&] { return ending_ || !worker.queue.empty(); });
    if (ending_) return;
    Job& job = jobs_.at(worker.queue.front());
    worker.queue.pop_front();
    run(job, lock);
    done_.notify_all();
  }
}

// References to jobs stay valid: a job is removed from the map only when it is done.
void Mover::run(Job& job, std::unique_lock<std::mutex>& lock) {
  job.state = State::running;
  const bool locked = lock.owns_lock();
  if (locked) lock.unlock();
  const auto start = SteadyClock::now();
  try {
    if (job.out) {
      job.page = tier_.write(job.memory, job.bytes);
    } else if (!tier_.read(job.page, job.memory)) {
      job.page = 0;
    }
  } catch (const std::bad_alloc&) {
    job.page = 0;
  }
  const Seconds seconds = since(start);
  if (locked) lock.lock();
  job.seconds = seconds;
  job.state = State::done;
}

bool Mover::cancel(std::uint32_t ticket) {
  if (alone()) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  const Job& job = jobs_.at(ticket);
  if (job.state != State::waiting) return false;
  std::erase((job.out ? out_ : in_).queue, ticket);
  jobs_.erase(ticket);
  return true;
}

void Mover::wait(std::uint32_t ticket) {
  const auto start = SteadyClock::now();
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  const bool alone = this->alone();
  if (!alone) lock.lock();
  auto found = jobs_.find(ticket);
  if (found == jobs_.end() || found->second.state == State::done) return;
  Job& job = found->second;  // valid until the job is finished; iterators are not
  if (alone) {               // in a forked process: do all of it again
    run(job, lock);
    job.waited = since(start);
  } else if (job.state == State::waiting) {
    std::erase((job.out ? out_ : in_).queue, ticket);
    run(job, lock);
    job.waited = since(start);
    done_.notify_all();
  } else {
    done_.wait(lock, [&] {
      found = jobs_.find(ticket);
      return found == jobs_.end() || found->second.state == State::done;
    });
    if (found != jobs_.end()) found->second.waited = since(start);
  }
}

Transfer Mover::finish(std::uint32_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!alone()) lock.lock();
  const auto found = jobs_.find(ticket);
  if (found == jobs_.end() || found->second.state != State::done) return {};
  const Job job = found->second;
  jobs_.erase(found);
  return {true, job.page, job.seconds, job.waited};
}

}  // namespace coop
