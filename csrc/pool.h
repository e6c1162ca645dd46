// Objects of one type, recycled: allocation and release are a few instructions, addresses never change.
#pragma once

#include <cstddef>
#include <deque>
#include <new>

namespace coop {

template <typename T>
class Pool {
 public:
  T* make() {
    T* object;
    if (free_) {
      object = reinterpret_cast<T*>(free_);
      free_ = free_->next;
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
  }
  std::size_t size() const { return size_; }

 private:
  union Slot {
    Slot* next;
    alignas(T) unsigned char bytes[sizeof(T)];
  };
  std::deque<Slot> chunk_;
  Slot* free_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace coop
