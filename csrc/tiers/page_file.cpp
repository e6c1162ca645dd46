#include "tiers/page_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/digest.h"

namespace coop {

PageFile::~PageFile() {
  if (file_ >= 0) close(file_);
}

bool PageFile::open() {
  const std::lock_guard<std::mutex> held(lock());
  return open_unlocked();
}

bool PageFile::open_unlocked() {
  if (broken_) errno = broken_;
  if (file_ >= 0 || broken_) return file_ >= 0;
  std::string path = folder_ + "/" + name_ + "-XXXXXX";
  file_ = mkostemp(path.data(), O_CLOEXEC);
  if (file_ >= 0) {
    unlink(path.c_str());
    owner_ = getpid();
  } else {
    broken_ = errno;
  }
  return file_ >= 0;
}

void PageFile::put(std::uint32_t& list, std::uint32_t number) { slots_[number].next = std::exchange(list, number); }

std::uint32_t PageFile::take(std::uint32_t& list) { return std::exchange(list, slots_[list].next); }

// Everything that may throw comes before the first change.
std::uint32_t PageFile::write(const void* memory, Bytes bytes) {
  std::uint32_t number = 0;
  Bytes offset = 0;
  {
    const std::lock_guard<std::mutex> held(lock());
    if (!bytes || !open_unlocked() || owner_ != getpid()) return 0;
    std::uint32_t& unused = free_[bytes];
    if (!unused) {
      if (limit_ && end_ + bytes > limit_) return 0;
      if (!bare_) {
        slots_.emplace_back();
        put(bare_, static_cast<std::uint32_t>(slots_.size() - 1));
      }
      number = take(bare_);
      slots_[number] = {end_, bytes, 0, 0};
      end_ += bytes;
    } else {
      number = take(unused);
    }
    offset = slots_[number].offset;
  }
  const char* from = static_cast<const char*>(memory);
  for (Bytes done = 0; done < bytes;) {
    const ssize_t count = pwrite(file_, from + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      give_back(number);
      return 0;
    }
    done += static_cast<Bytes>(count);
  }
  const std::uint64_t digest = digest_of(memory, bytes);
  const std::lock_guard<std::mutex> held(lock());
  slots_[number].digest = digest;
  return number;
}

bool PageFile::read(std::uint32_t number, void* memory) {
  Slot slot;
  {
    const std::lock_guard<std::mutex> held(lock());
    slot = slots_.at(number);
  }
  char* to = static_cast<char*>(memory);
  for (Bytes done = 0; done < slot.bytes;) {
    const ssize_t count = pread(file_, to + done, slot.bytes - done, static_cast<off_t>(slot.offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<Bytes>(count);
  }
  return digest_of(memory, slot.bytes) == slot.digest;
}

void PageFile::drop(std::uint32_t number) {
  const std::lock_guard<std::mutex> held(lock());
  put(free_.at(slots_.at(number).bytes), number);  // the list for this size exists since it was written
}

// The slot could not be written. If it is the last in the file, the file ends before it: there may
// be room for a smaller one.
void PageFile::give_back(std::uint32_t number) {
  const std::lock_guard<std::mutex> held(lock());
  Slot& slot = slots_[number];
  if (slot.offset + slot.bytes == end_) {
    end_ = slot.offset;
    put(bare_, number);
  } else {
    put(free_.at(slot.bytes), number);
  }
}

}  // namespace coop
