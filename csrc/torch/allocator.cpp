#include "torch/allocator.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "torch/out_of_budget.h"
#include "torch/scope.h"
#include "torch/turn.h"

namespace coop {

namespace {

c10::Allocator* system = nullptr;

class HookAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* address = bytes == 0 ? nullptr : take(bytes);
    return {address, address, &release_raw, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_raw; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void* take(std::size_t bytes) {
    const Scope::Use use;
    Scope* scope = use.scope();
    // Kernels split their work among threads that allocate too.
    if (!scope || !(this_thread_is_managed() || at::in_parallel_region())) return system->raw_allocate(bytes);
    try {
      void* address = scope->address(*scope->engine().allocate(bytes));
      if (!inside_op() && this_thread_is_managed()) scope->empty_trash();
      return address;
    } catch (const Shortage& shortage) {
      if (inside_op() || !this_thread_is_managed()) throw;  // the fallback knows which op it is
      throw_out_of_budget(shortage, "an allocation outside of any operator");
    }
  }
};

}  // namespace

c10::Allocator& system_allocator() { return *system; }

void release_raw(void* address) {
  if (!address) return;
  if (Scope* scope = Scope::owner_of(address)) {
    scope->engine().free(scope->offset(address));
    Scope::drop_if_done(scope);
  } else {
    system->raw_deallocate(address);
  }
}

void release_storage(void* context) {
  auto* storage = static_cast<Storage*>(context);
  Engine* engine = storage->engine;
  auto* impl = static_cast<c10::StorageImpl*>(storage->handle);
  engine->let_go(*storage);
  c10::raw::weak_intrusive_ptr::decref(impl);
  Scope::drop_if_done(static_cast<Scope*>(&engine->driver()));
}

void install_allocator() {
  static HookAllocator hook;
  if (system) return;
  system = c10::GetAllocator(c10::kCPU);
  watch_forks();
  c10::SetAllocator(c10::kCPU, &hook, 255);
}

}  // namespace coop
