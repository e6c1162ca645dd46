// Torch storages and their memory: which storage of the engine stands behind one, what lies outside
// the arena, and pointers that escape.
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "torch/allocator.h"
#include "torch/out_of_budget.h"
#include "torch/scope.h"
#include "torch/turn.h"

namespace coop {

namespace {

constexpr const char* kEvictedMessage =
    "coop: this tensor's bytes are evicted, and they were read without coop knowing: from a thread that was started "
    "before "
    "the budget's scope, or by code that reads memory past PyTorch's operators. Tip: call memory.pin(tensor) first.";

thread_local c10::StorageImpl* being_bound = nullptr;  // by this thread, which holds it

}  // namespace

Storage* Scope::known_storage_of(c10::StorageImpl* impl) {
  const c10::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() == &release_storage) {
    auto* storage = static_cast<Storage*>(pointer.get_context());
    if (storage->engine == engine_.get()) return storage;
  }
  const std::lock_guard<std::mutex> lock(maps_mutex_);
  const auto found = foreign_.find(impl);
  return found == foreign_.end() ? nullptr : found->second.storage;
}

Storage* Scope::storage_of(c10::StorageImpl* impl) {
  c10::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = pointer.get_deleter();
  if (deleter == &release_storage) {
    auto* storage = static_cast<Storage*>(pointer.get_context());
    if (storage->engine == engine_.get()) [[likely]]
      return storage;
  } else if (deleter == &release_raw && contains(pointer.get())) {
    c10::raw::weak_intrusive_ptr::incref(impl);
    being_bound = impl;
    Storage* storage = engine_->bind(offset(pointer.get()), impl->nbytes(), impl);
    being_bound = nullptr;
    if (storage) return storage;
    c10::raw::weak_intrusive_ptr::decref(impl);
  }
  if (impl->nbytes() == 0) return nullptr;
  {
    const std::lock_guard<std::mutex> lock(maps_mutex_);
    if (const auto found = foreign_.find(impl); found != foreign_.end()) return found->second.storage;
  }
  Storage* storage = engine_->bind_foreign(impl->nbytes(), impl);
  storage->tracked = true;
  const std::lock_guard<std::mutex> lock(maps_mutex_);
  storage->open = opened_.contains(impl);
  foreign_[impl] = {storage, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl)};
  return storage;
}

Storage* Scope::storage_in_arena(c10::StorageImpl* impl) {
  const c10::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
  const bool raw = pointer.get_deleter() == &release_raw && contains(pointer.get());
  Storage* storage = raw ? storage_of(impl) : known_storage_of(impl);
  return storage && !storage->foreign ? storage : nullptr;
}

const void* Scope::data(const Storage& storage) const {
  if (storage.foreign) return static_cast<c10::StorageImpl*>(storage.handle)->_mutable_data_ptr_no_checks().get();
  return address(*storage.block);
}

bool Scope::shared_outside(const Storage& storage) {
  if (storage.claims.exposed || storage.open) return true;
  if (!storage.foreign) return false;
  const auto deleter = static_cast<c10::StorageImpl*>(storage.handle)->_mutable_data_ptr_no_checks().get_deleter();
  return deleter != &release_raw && deleter != &release_storage && deleter != system_allocator().raw_deleter();
}

Bytes Scope::adopt(const at::Tensor& tensor) {
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  Storage* storage = storage_of(impl);
  if (!storage || !storage->foreign) return 0;
  if (shared_outside(*storage) || !impl->resizable()) {
    engine_->reconsider(*storage);
    return 0;
  }
  engine_->pin(*storage);
  engine_->before_overwrite(std::span(&storage, 1));
  const Bytes bytes = impl->nbytes();
  Block* block = nullptr;
  try {
    block = engine_->allocate(bytes);
  } catch (...) {
    engine_->unpin(*storage);
    throw;
  }
  void* to = address(*block);
  std::memcpy(to, data(*storage), bytes);
  engine_->unpin(*storage);  // forgets it: nothing reads the foreign storage any more
  impl->set_data_ptr_noswap(c10::DataPtr(to, to, &release_raw, c10::kCPU));
  impl->set_allocator(c10::GetAllocator(c10::kCPU));
  storage_of(impl);
  return bytes;
}

Storage* Scope::snapshot(Storage& storage) {
  const void* bytes = data(storage);
  {
    const std::lock_guard<std::mutex> lock(maps_mutex_);
    if (const auto last = snapshots_.find(&storage); last != snapshots_.end()) {
      const Storage& copy = *last->second;
      if (copy.block && std::memcmp(data(copy), bytes, storage.bytes) == 0) return last->second;  // else it has left
    }
  }
  Block* block = engine_->allocate(storage.bytes);
  std::memcpy(address(*block), bytes, storage.bytes);
  Storage* copy = engine_->bind_hidden(block->offset, storage.bytes);
  copy->tracked = storage.tracked = true;
  const std::lock_guard<std::mutex> lock(maps_mutex_);
  snapshots_[&storage] = copy;
  return copy;
}

void Scope::expose(c10::StorageImpl* impl, bool foreign_too) {
  Storage* storage = storage_in_arena(impl);
  if (!storage && foreign_too) {
    {
      // It may be forgotten and met again: the address stays known.
      const std::lock_guard<std::mutex> lock(maps_mutex_);
      std::erase_if(opened_, [](const auto& item) { return item.second.expired(); });
      opened_.try_emplace(impl, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
    }
    storage = known_storage_of(impl);
  }
  if (storage) engine_->expose(*storage);
}

void Scope::emptied(c10::StorageImpl* impl, Storage& storage) {
  std::vector<Storage*> given_up;  // their torch storages are gone
  {
    const std::lock_guard<std::mutex> lock(maps_mutex_);
    for (const auto& [_, before] : emptied_) {
      if (before.impl.expired()) given_up.push_back(before.storage);
    }
    if (const auto before = emptied_.find(impl); before != emptied_.end()) given_up.push_back(before->second.storage);
    std::erase_if(emptied_, [&](const auto& item) { return item.first == impl || item.second.impl.expired(); });
  }
  for (Storage* before : given_up) engine_->expect_back(*before, false);
  if (storage.held || !storage.source() || !storage.uses || !storage.block) return;
  storage.tracked = true;
  engine_->expect_back(storage, true);
  const std::lock_guard<std::mutex> lock(maps_mutex_);
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
  emptied_.emplace(impl, Emptied{&storage, std::move(weak)});
  any_emptied_ = true;
}

void Scope::refilled_slow(std::span<Storage* const> written) {
  for (Storage* storage : written) {
    Storage* before = nullptr;
    {
      const std::lock_guard<std::mutex> lock(maps_mutex_);
      const auto found = emptied_.find(static_cast<c10::StorageImpl*>(storage->handle));
      if (found == emptied_.end()) continue;
      before = found->second.storage;
      emptied_.erase(found);
      any_emptied_ = !emptied_.empty();
    }
    bool same =
        before->block && before->bytes == storage->bytes && storage->block && storage->source() && !storage->uses;
    if (same) {
      engine_->hold(std::span(&before, 1));
      same = std::memcmp(data(*before), data(*storage), storage->bytes) == 0;
      if (same) engine_->replace(*before, *storage);
      if (!same) engine_->expect_back(*before, false);
      engine_->leave(std::span(&before, 1));
    } else {
      engine_->expect_back(*before, false);
    }
  }
}

void Scope::watch_pointer(c10::StorageImpl* impl) {
  if (impl->has_materializer()) return;
  impl->set_materializer([](c10::StorageImpl* touched) {
    const Turn turn;
    if (Scope* scope = active()) {
      if (Storage* storage = scope->known_storage_of(touched); storage && !storage->foreign) {
        try {
          scope->engine().expose(*storage);
        } catch (const Shortage& shortage) {
          throw_out_of_budget(shortage, "a pointer to a tensor");
        }
      }
    }
  });
}

void Scope::ignore_pointer(c10::StorageImpl* impl) {
  if (impl->has_materializer()) impl->clear_materializer();
}

c10::StorageImpl* Scope::handle_of(const Storage& storage) {
  auto* impl = static_cast<c10::StorageImpl*>(storage.handle);
  if (impl == being_bound) return impl;
  c10::StorageImpl* owned = c10::raw::weak_intrusive_ptr::lock(impl);
  if (!owned) return nullptr;
  // It may become the last reference, and must not be dropped under the engine's lock.
  const std::lock_guard<std::mutex> lock(maps_mutex_);
  trash_.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim(owned));
  return owned;
}

void Scope::detach(Storage& storage) {
  c10::StorageImpl* impl = handle_of(storage);
  if (!impl) return;
  impl->_mutable_data_ptr_no_checks().release_context();
  impl->set_data_ptr_noswap(c10::DataPtr(nullptr, &storage, &release_storage, c10::kCPU));
  impl->clear_materializer();
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(kEvictedMessage);
}

void Scope::attach(Storage& storage) {
  c10::StorageImpl* impl = handle_of(storage);
  if (!impl) return;
  impl->_mutable_data_ptr_no_checks().release_context();
  impl->clear_data_ptr_access_error_msg_();
  impl->set_data_ptr_noswap(c10::DataPtr(address(*storage.block), &storage, &release_storage, c10::kCPU));
  if (watched(storage)) watch_pointer(impl);
}

}  // namespace coop
