#include "torch/held.h"

#include <torch/csrc/utils/pybind.h>

#include <span>
#include <utility>

#include "torch/out_of_budget.h"
#include "torch/scope.h"
#include "torch/turn.h"

namespace coop {
namespace {

class Held {
 public:
  explicit Held(const c10::Storage& torch_storage) {
    const Turn turn;
    Scope* scope = Scope::active();
    c10::StorageImpl* impl = torch_storage.unsafeGetStorageImpl();
    Storage* storage = scope ? scope->storage_in_arena(impl) : nullptr;
    if (!storage) return;
    try {
      scope->engine().hold(std::span(&storage, 1));
    } catch (const Shortage& shortage) {
      throw_out_of_budget(shortage, "a tensor's memory");
    }
    ++storage->borrowers;
    Scope::ignore_pointer(impl);
    scope_ = scope;
    storage_ = storage;
    impl_ = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl);
    scope->readers_began(1);
  }
  // The storage is still known, even if its torch storage has got other memory meanwhile: it is
  // locked.
  void release() {
    if (!scope_) return;
    const Turn turn;
    --storage_->borrowers;
    if (impl_->nbytes() == 0) scope_->emptied(impl_.get(), *storage_);
    scope_->engine().arrived(std::span(&storage_, 1));
    std::exchange(scope_, nullptr)->readers_began(-1);
  }

 private:
  Scope* scope_ = nullptr;
  Storage* storage_ = nullptr;
  c10::intrusive_ptr<c10::StorageImpl> impl_;
};

}  // namespace

void bind_held(pybind11::module_& module) {
  namespace py = pybind11;
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<Held>(module, "Held")
      .def(py::init<const c10::Storage&>(), without_gil)
      .def("release", &Held::release, without_gil);
}

}  // namespace coop
