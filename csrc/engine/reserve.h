// Memory that the engine holds back for its own records, so that no operation ends half done
// because a few bytes are missing.
//
// When operator new finds no memory, in the engine or anywhere in the process, the reserve is freed
// and operator new tries again. The next call into the engine refills the reserve before it does
// anything else. If that fails, it throws std::bad_alloc: rule 8.
#pragma once

#include <atomic>
#include <new>

namespace coop {

class Reserve {
 public:
  static constexpr std::size_t kBytes = 4 << 20;  // more than one call takes; only address space

  // Installed by the first engine, until the process ends. A handler that was installed before is
  // called when the reserve is empty.
  static void install() {
    static const bool once = [] {
      before_ = std::get_new_handler();
      refill();
      std::set_new_handler(&give);
      return true;
    }();
    static_cast<void>(once);
  }
  // To be called at the beginning of a call into the engine.
  static void require() {
    if (!memory_.load(std::memory_order_relaxed)) [[unlikely]]
      refill();
  }

 private:
  static void refill() {
    void* made = ::operator new(kBytes);
    if (void* other = memory_.exchange(made)) ::operator delete(other);
  }
  static void give() {
    if (void* memory = memory_.exchange(nullptr)) {
      ::operator delete(memory);
    } else if (before_) {
      before_();
    } else {
      throw std::bad_alloc();
    }
  }

  static inline std::atomic<void*> memory_ = nullptr;
  static inline std::new_handler before_ = nullptr;
};

}  // namespace coop
