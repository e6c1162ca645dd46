// The Python surface of the extension: coop._C. Everything here is thin; the names and defaults
// users see are in Python.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <cerrno>
#include <sstream>
#include <system_error>

#include "python/engine_bindings.h"
#include "python/termination.h"
#include "tiers/host_tier.h"
#include "tiers/page_file.h"
#include "torch/allocator.h"
#include "torch/buckets.h"
#include "torch/composite.h"
#include "torch/held.h"
#include "torch/out_of_budget.h"
#include "torch/out_of_step.h"
#include "torch/scope.h"
#include "torch/tally.h"
#include "torch/turn.h"

namespace py = pybind11;

namespace coop {
namespace {

PyObject* out_of_budget = nullptr;  // the exception type, set by Python

std::string human(Bytes bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  std::ostringstream text;
  text.setf(std::ios::fixed);
  text.precision(unit ? 2 : 0);
  text << value << ' ' << units[unit];
  return text.str();
}

std::string describe(const Shortage& s, const std::string& op) {
  std::ostringstream text;
  if (s.in_circles) {
    text << op << " needs storages that push each other out when they are brought back, the last of them "
         << human(s.needed);
  } else {
    text << op << " needs " << human(s.needed) << " in one piece; " << human(s.largest)
         << " is the largest run that could be freed";
  }
  text << ". Cannot leave: " << human(s.sources) << " of sources, " << human(s.locked) << " of this op's operands, "
       << human(s.scratch) << " of its results and scratch, " << human(s.pinned) << " pinned, " << human(s.exposed)
       << " with pointers outside. The budget is " << human(s.budget) << '.';
  return text.str();
}

Scope& open_scope() {
  Scope* scope = Scope::active();
  if (!scope) throw std::runtime_error("no budget is in force");
  return *scope;
}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

// Runs in a turn, with the GIL released, and turns a shortage into the Python exception.
template <typename Work>
void in_turn(const char* what, Work work) {
  const py::gil_scoped_release release;
  const Turn turn;
  try {
    work();
  } catch (const Shortage& shortage) {
    throw_out_of_budget(shortage, what);
  }
}

void with_storage(const at::Tensor& tensor, const char* what, void (Engine::*act)(Storage&)) {
  const Scope::Use use;
  Scope* scope = use.scope();
  c10::StorageImpl* impl = storage_of(tensor);
  if (!scope || !impl) return;
  Storage* storage = scope->known_storage_of(impl);
  if (!storage || storage->foreign) return;
  in_turn(what, [&] { (scope->engine().*act)(*storage); });
}

const char* state(const at::Tensor& tensor) {
  const Scope::Use use;
  Scope* scope = use.scope();
  c10::StorageImpl* impl = storage_of(tensor);
  Storage* storage = scope && impl ? scope->known_storage_of(impl) : nullptr;
  if (!storage || storage->foreign) return "foreign";
  if (storage->absent()) return storage->state() == State::swapped ? "swapped" : "evicted";
  if (storage->claims.exposed) return "exposed";
  return storage->source() ? "source" : "resident";
}

// Whoever holds the engine's lock may need the GIL: a record goes, and a Python object with it.
template <typename Call>
auto without_gil(Call call) {
  const pybind11::gil_scoped_release release;
  return call();
}

}  // namespace

void lock_without_gil(std::recursive_mutex& mutex) {
  if (PyGILState_Check()) {
    const py::gil_scoped_release release;
    mutex.lock();
  } else {
    mutex.lock();
  }
}

void throw_out_of_budget(const Shortage& shortage, const std::string& op) {
  const py::gil_scoped_acquire gil;
  py::dict numbers;
  numbers["needed"] = shortage.needed;
  numbers["budget"] = shortage.budget;
  numbers["enough"] = shortage.enough;
  numbers["whole"] = shortage.whole;
  numbers["sources"] = shortage.kept;
  numbers["working"] = shortage.working;
  numbers["operands"] = shortage.operands;
  numbers["read"] = shortage.read;
  numbers["swaps"] = shortage.swaps;
  const py::object raised = py::handle(out_of_budget)(describe(shortage, op), op, **numbers);
  PyErr_SetObject(out_of_budget, raised.ptr());
  python_error error;
  error.persist();
  throw error;
}

}  // namespace coop

PYBIND11_MODULE(_C, module) {
  using namespace coop;
  module.doc() = "Coop's engine and its hook into PyTorch.";
  install_allocator();

  bind_engine(module);
  bind_tally(module);
  bind_buckets(module);
  bind_held(module);
  bind_out_of_step(module);
  bind_termination(module);
  bind_plan_search(module);
  module.def("set_exception", [](py::object type) { out_of_budget = type.release().ptr(); });
  module.def("open", [](const Options& options, bool events) {
    watch_composite_calls();
    Scope::open(std::make_unique<Scope>(options));
    Scope::active()->engine().watch(events);
    manage_this_thread(true);
  });
  module.def("close", [] {
    open_scope();
    const struct Unmanage {
      ~Unmanage() { manage_this_thread(false); }
    } unmanage;
    const py::gil_scoped_release release;
    const Turn turn;
    return Scope::close();
  });
  module.def("is_open", [] { return Scope::active() != nullptr; });
  module.def("manage_this_thread", &manage_this_thread);
  module.def("this_thread_is_managed", &this_thread_is_managed);
  module.def("stats", [] {
    Engine& engine = open_scope().engine();
    return to_python(without_gil([&] { return engine.stats(); }));
  });
  module.def("follow", [](std::shared_ptr<Planned> plan) {
    Engine& engine = open_scope().engine();
    without_gil([&] { engine.follow(std::move(plan)); });
  });
  module.def("swap_to_host", [](Bytes limit) { open_scope().swap_to(std::make_unique<HostTier>(limit)); });
  module.def("swap_to_file", [](std::string folder, Bytes limit, bool now, std::string name) {
    auto file = std::make_unique<PageFile>(std::move(folder), limit, std::move(name));
    if (now && !file->open()) throw std::system_error(errno, std::generic_category());
    open_scope().swap_to(std::move(file));
  });
  module.def("time_ops", [] { open_scope().time_ops(); });
  module.def("op_times", [] { return open_scope().take_op_times(); });
  module.def("why_lost", [] {
    Engine& engine = open_scope().engine();
    return without_gil([&] { return engine.why_lost(); });
  });
  module.def("events", [] {
    Engine& engine = open_scope().engine();
    return to_python(without_gil([&] { return engine.take_events(); }));
  });
  module.def("check", [] {
    Engine& engine = open_scope().engine();
    without_gil([&] { engine.check(); });
  });
  module.def("adopt", [](const at::Tensor& tensor) {
    Scope& scope = open_scope();
    Bytes moved = 0;
    if (storage_of(tensor)) in_turn("adopt", [&] { moved = scope.adopt(tensor); });
    return moved;
  });
  module.def("pin", [](const at::Tensor& t) { with_storage(t, "pin", &Engine::pin_held); });
  module.def("unpin", [](const at::Tensor& t) { with_storage(t, "unpin", &Engine::unpin_held); });
  module.def("materialise", [](const at::Tensor& t) { with_storage(t, "materialise", &Engine::materialise); });
  module.def("commit", [](const at::Tensor& t) { with_storage(t, "commit", &Engine::commit); });
  const auto expose = [](c10::StorageImpl* impl, bool foreign_too) {
    const Scope::Use use;
    Scope* scope = use.scope();
    if (scope && impl) in_turn("a pointer to a tensor", [&] { scope->expose(impl, foreign_too); });
  };
  module.def("expose", [expose](const at::Tensor& tensor) { expose(storage_of(tensor), false); });
  module.def("expose_storage", [expose](const c10::Storage& s) { expose(s.unsafeGetStorageImpl(), false); });
  module.def("share", [expose](const at::Tensor& tensor) { expose(storage_of(tensor), true); });
  module.def("state", &state);
  module.def("same_again_in_doubt", [](const std::string& name) {
    const std::size_t dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findOp(
        {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
    return op && op->hasSchema() && OpInfo::of(*op).same_again.in_doubt();
  });
}
