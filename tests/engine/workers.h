// Threads and processes of a test: a check that fails in one of them fails the test.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <latch>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "tiers/tier.h"

namespace check {

// What went wrong in it; empty: nothing.
template <typename Work>
std::string problem_of(Work&& work) {
  try {
    work();
  } catch (const Failure& failure) {
    return failure.text;
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
  return {};
}

// Threads that end, and tell their first failure, when this does.
class Workers {
 public:
  // Again and again, until the end.
  template <typename Work>
  void start(Work work) {
    run([this, work]() mutable {
      while (!done_.load(std::memory_order_relaxed)) work();
    });
  }
  // Once.
  template <typename Work>
  void run(Work work) {
    threads_.emplace_back([this, work]() mutable {
      const std::string problem = problem_of(work);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_.empty()) failure_ = problem;
    });
  }
  void finish() {
    end();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) fail(__FILE__, __LINE__, failure_);
  }
  ~Workers() { end(); }

 private:
  void end() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  std::vector<std::thread> threads_;
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::string failure_;
};

// So many threads do this once, all at the same time.
template <typename Work>
void in_threads(int count, Work work) {
  std::latch start(count);
  Workers workers;
  for (int i = 0; i < count; ++i) {
    workers.run([&start, &work, i] {
      start.arrive_and_wait();
      work(i);
    });
  }
  workers.finish();
}

// A forked process that does this and ends. Tiers are forked as the torch hook forks them.
class Child {
 public:
  template <typename Work>
  explicit Child(Work work) {
    std::fflush(nullptr);
    coop::Tier::lock().lock();
    process_ = fork();
    coop::Tier::lock().unlock();
    if (process_) return;
    const std::string problem = problem_of(work);
    if (!problem.empty()) std::fprintf(stderr, "\n    in a forked process: %s\n", problem.c_str());
    _exit(problem.empty() ? 0 : 1);
  }
  // It has ended, and found nothing wrong.
  void finish() {
    int status = -1;
    CHECK(process_ > 0);
    CHECK_EQUAL(waitpid(std::exchange(process_, 0), &status, 0) > 0 ? status : -1, 0);
  }
  ~Child() {
    if (process_ > 0) waitpid(process_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t process_ = 0;
};

}  // namespace check
