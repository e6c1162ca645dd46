// An overdraft is address space behind the arena, which is there for the end of the scope, made
// accessible for a while.
#include "torch/overdraft.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace coop {

namespace {

// Free memory of the machine or of the container, the smaller one. 0: not known.
Bytes free_memory() {
  Bytes free = 0;
  std::ifstream machine("/proc/meminfo");
  for (std::string name; machine >> name;) {
    if (name == "MemAvailable:" && machine >> free) break;
    machine.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  free *= 1024;
  Bytes limit = 0, used = 0;
  std::ifstream most("/sys/fs/cgroup/memory.max"), now("/sys/fs/cgroup/memory.current");
  if (most >> limit && now >> used) free = std::min(free, limit > used ? limit - used : 0);
  return free;
}

constexpr Bytes kByFar = 4;

}  // namespace

Overdraft::Overdraft(Scope& scope, Bytes at_least) : scope_(scope) {
  end_if_possible(scope);
  if (scope.overdraft_) return;
  const Bytes most = std::min((Scope::kReserve - 1) * scope.mapped_, free_memory() / kByFar / 4096 * 4096);
  if (most < at_least) return;
  if (mprotect(scope.base_ + scope.mapped_, most, PROT_READ | PROT_WRITE) != 0) return;
  scope.overdraft_ = most;
  scope.size_ += most;
  scope.engine().overdraw(most);
  granted_ = true;
}

void Overdraft::end_if_possible(Scope& scope) {
  if (!scope.overdraft_ || !scope.engine().end_overdraft()) return;
  scope.size_ -= scope.overdraft_;
  madvise(scope.base_ + scope.mapped_, scope.overdraft_, MADV_DONTNEED);
  mprotect(scope.base_ + scope.mapped_, scope.overdraft_, PROT_NONE);
  scope.overdraft_ = 0;
}

}  // namespace coop
