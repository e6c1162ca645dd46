// Memory that the engine keeps for its own records, so that none of its steps ends half done for want of a few bytes.
//
// When operator new finds nothing, here or anywhere in the process, it is given the reserve and goes on. The next call into the
// engine asks for the reserve again, before it has done anything; if that is not to be had, it throws std::bad_alloc: rule 8.
#pragma once

#include <atomic>
#include <new>

namespace coop {

class Reserve {
 public:
  static constexpr std::size_t kBytes =
      4 << 20;  // more than one call ever takes; never touched, so it is address space only

  // From the first engine on, to the end of the process: what is installed behind it is asked after it.
  static void install() {
    static const bool once = [] {
      before_ = std::get_new_handler();
      refill();
      std::set_new_handler(&give);
      return true;
    }();
    static_cast<void>(once);
  }
  // Where a call begins.
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
