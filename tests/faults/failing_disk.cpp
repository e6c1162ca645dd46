// Preloaded before libc: one call on coop's page file fails, the one that was asked for.
#include <dlfcn.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace {

enum Kind { open_, write_, read_, kinds };
constexpr int kShort = -1;  // not an error: a part of what was asked for, and then nothing more

std::atomic<int> page_file{-1};
std::atomic<int> calls[kinds];
std::atomic<int> fail_kind{-1}, fail_number{0}, fail_error{0};

// Whether this call is to fail, and how: 0 if it is not.
int fails(Kind kind) {
  const int number = ++calls[kind];
  return fail_kind == kind && number == fail_number ? fail_error.load() : 0;
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

template <typename Memory>
ssize_t transfer(Kind kind, const char* name, int file, Memory memory, size_t count, off_t offset) {
  static const auto function = real<ssize_t (*)(int, Memory, size_t, off_t)>(name);
  const int error = file == page_file ? fails(kind) : 0;
  if (error == kShort) return count > 1 ? function(file, memory, count / 2, offset) : 0;
  if (error) {
    errno = error;
    return -1;
  }
  return function(file, memory, count, offset);
}

int make(const char* name, char* path, int flags) {
  static const auto function = real<int (*)(char*, int)>(name);
  if (!std::strstr(path, "coop-pages-")) return function(path, flags);
  if (const int error = fails(open_)) {
    errno = error;
    return -1;
  }
  return page_file = function(path, flags);
}

}  // namespace

extern "C" {

// From now on: the number-th call of a kind fails; 0: none.
void fail_at(int kind, int number, int error) {
  for (auto& count : calls) count = 0;
  fail_error = error;
  fail_number = number;
  fail_kind = kind;
}
int calls_of(int kind) { return calls[kind]; }

int mkostemp(char* path, int flags) { return make("mkostemp", path, flags); }
int mkostemp64(char* path, int flags) { return make("mkostemp64", path, flags); }
ssize_t pwrite(int file, const void* memory, size_t count, off_t offset) {
  return transfer(write_, "pwrite", file, memory, count, offset);
}
ssize_t pwrite64(int file, const void* memory, size_t count, off_t offset) {
  return transfer(write_, "pwrite64", file, memory, count, offset);
}
ssize_t pread(int file, void* memory, size_t count, off_t offset) {
  return transfer(read_, "pread", file, memory, count, offset);
}
ssize_t pread64(int file, void* memory, size_t count, off_t offset) {
  return transfer(read_, "pread64", file, memory, count, offset);
}

}  // extern "C"
