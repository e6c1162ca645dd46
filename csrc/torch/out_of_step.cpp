#include "torch/out_of_step.h"

#include <torch/csrc/Exceptions.h>

namespace coop {

namespace py = pybind11;

namespace {
PyObject* judge = nullptr;  // a function of Python: raises if the rank is out of step
}

std::atomic<bool> OutOfStep::suspected_{false};
std::atomic<std::uint64_t> OutOfStep::count_{0};

void OutOfStep::ask(const std::string& op) {
  const py::gil_scoped_acquire gil;
  const py::handle function = judge;
  try {
    function(op);
  } catch (py::error_already_set& raised) {
    raised.restore();
    python_error error;
    error.persist();
    throw error;
  }
}

void bind_out_of_step(py::module_& module) {
  module.def("set_judge", [](py::object function) { judge = function.release().ptr(); });
  module.def("suspect", [](bool on) { OutOfStep::suspected_.store(on && judge, std::memory_order_relaxed); });
  module.def("collectives", [] { return OutOfStep::count_.load(std::memory_order_relaxed); });
}

}  // namespace coop
