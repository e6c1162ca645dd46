// Objects of one type, recycled: allocation and release are a few instructions, addresses never
// change. Under the address sanitizer, released objects are out of bounds.
#pragma once

#include <cstddef>
#include <deque>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace coop {

template <typename T>
class Pool {
 public:
  T* make() {
    T* object;
    if (free_) {
      object = reinterpret_cast<T*>(free_);
      free_ = free_->next;
      forbid(object, false);
    } else {
      chunk_.emplace_back();
      object = reinterpret_cast<T*>(&chunk_.back());
    }
    ++size_;
    return new (object) T{};
  }
  void release(T* object) {
    object->~T();
    auto* slot = reinterpret_cast<Slot*>(object);
    slot->next = free_;
    free_ = slot;
    --size_;
    forbid(object, true);
  }
  std::size_t size() const { return size_; }

 private:
  union Slot {
    Slot* next;
    alignas(T) unsigned char bytes[sizeof(T)];
  };
  // Poisons all of a free slot but its link.
  static void forbid([[maybe_unused]] T* object, [[maybe_unused]] bool on) {
#if defined(__SANITIZE_ADDRESS__)
    auto* bytes = reinterpret_cast<unsigned char*>(object);
    if (on) {
      __asan_poison_memory_region(bytes + sizeof(Slot*), sizeof(Slot) - sizeof(Slot*));
    } else {
      __asan_unpoison_memory_region(bytes, sizeof(Slot));
    }
#endif
  }
  std::deque<Slot> chunk_;
  Slot* free_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace coop
