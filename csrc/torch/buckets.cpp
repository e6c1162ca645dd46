#include "torch/buckets.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "torch/out_of_budget.h"
#include "torch/scope.h"
#include "torch/turn.h"

namespace coop {

namespace {
thread_local Buckets* being_collected __attribute__((tls_model("initial-exec"))) = nullptr;
}  // namespace

Buckets::Collecting::Collecting(Buckets& buckets) : before_(std::exchange(being_collected, &buckets)) {}
Buckets::Collecting::~Collecting() { being_collected = before_; }

Buckets* Buckets::collecting() { return being_collected; }

void Buckets::add(c10::StorageImpl* impl) {
  std::erase_if(all_, [](const Weak& bucket) { return bucket.expired(); });
  all_.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
}

void Buckets::keep() {
  release();
  const Turn turn;
  Scope* scope = Scope::active();
  if (!scope) return;
  for (const Weak& bucket : all_) {
    const auto impl = bucket.lock();
    Storage* storage = impl ? scope->storage_in_arena(impl.get()) : nullptr;
    if (!storage) continue;
    try {
      scope->engine().pin_held(*storage);
    } catch (const Shortage& shortage) {
      throw_out_of_budget(shortage, "the buckets of a reducer");
    }
    kept_.push_back(bucket);
  }
}

void Buckets::release() {
  const Turn turn;
  Scope* scope = Scope::active();
  for (const Weak& bucket : std::exchange(kept_, {})) {
    const auto impl = bucket.lock();
    Storage* storage = scope && impl ? scope->storage_in_arena(impl.get()) : nullptr;
    if (storage && storage->claims.program_pins) scope->engine().unpin_held(*storage);
  }
}

void bind_buckets(pybind11::module_& module) {
  namespace py = pybind11;
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<Buckets>(module, "Buckets")
      .def(py::init<>())
      .def("collect",
           [](Buckets& buckets, const py::function& make) {
             const Buckets::Collecting collecting(buckets);
             return make();
           })
      .def("keep", &Buckets::keep, without_gil)
      .def("release", &Buckets::release, without_gil);
}

}  // namespace coop
