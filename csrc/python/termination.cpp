#include "python/termination.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>
#include <thread>

namespace coop {
namespace {

int ends[2] = {-1, -1};
pid_t owner = 0;

void die() {
  std::signal(SIGTERM, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  kill(getpid(), SIGTERM);
}

void on_termination(int) {
  const int before = errno;
  if (getpid() != owner) {  // a forked child has no thread that waits for it
    die();
  } else {
    const char byte = 0;
    static_cast<void>(!write(ends[1], &byte, 1));
  }
  errno = before;
}

// The end of a pipe at which a byte arrives with each SIGTERM; -1: the program handles or ignores
// it itself.
int watch_termination() {
  struct sigaction now{};
  sigaction(SIGTERM, nullptr, &now);
  if (now.sa_handler != SIG_DFL) return -1;
  if (ends[0] < 0 && pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category());
  owner = getpid();
  now.sa_handler = &on_termination;
  now.sa_flags = SA_RESTART;
  sigemptyset(&now.sa_mask);
  sigaction(SIGTERM, &now, nullptr);
  return ends[0];
}

// Python's own threads do not run any more when the interpreter ends.
void end_within(double seconds, int code) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    _exit(code);
  }).detach();
}

}  // namespace

void bind_termination(pybind11::module_& module) {
  module.def("watch_termination", &watch_termination);
  module.def("die_of_termination", &die);
  module.def("end_within", &end_within);
}

}  // namespace coop
