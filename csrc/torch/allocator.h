// All CPU memory of tensors and kernels: inside a scope, from the arena.
#pragma once

#include <c10/core/Allocator.h>

namespace coop {

// Takes over the CPU allocator. Once, for the life of the process; it passes through while no scope
// is open.
void install_allocator();
// torch's own allocator.
c10::Allocator& system_allocator();

// Deleter of a managed storage, resident or evicted: the context is the engine's storage.
void release_storage(void* storage);
// Deleter of a raw allocation, in the arena or not: the context is the address.
void release_raw(void* address);

}  // namespace coop
