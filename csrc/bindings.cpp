// The Python surface of the extension: coop._C. Everything here is thin; the names and defaults users see are in Python.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <sstream>

#include "ideal.h"
#include "out_of_budget.h"
#include "scope.h"
#include "torch_hook.h"

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
  text << op << " needs " << human(s.needed) << " in one piece; " << human(s.largest)
       << " is the largest run that could be freed. Cannot leave: " << human(s.sources) << " of sources, "
       << human(s.locked) << " of this op's operands, " << human(s.scratch) << " of its results and scratch, "
       << human(s.pinned) << " pinned, " << human(s.exposed) << " with pointers outside. The budget is "
       << human(s.budget) << ". Tip: a budget of " << s.enough << " bytes (" << human(s.enough)
       << ") would have served here; a smaller batch needs less.";
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

// Runs with the GIL released, and turns a shortage into the Python exception.
template <typename Work>
void without_gil(const char* what, Work work) {
  const py::gil_scoped_release release;
  try {
    work();
  } catch (const Shortage& shortage) {
    throw_out_of_budget(shortage, what);
  }
}

void with_storage(const at::Tensor& tensor, const char* what, void (Engine::*act)(Storage&)) {
  Scope* scope = Scope::active();
  c10::StorageImpl* impl = storage_of(tensor);
  if (!scope || !impl) return;
  Storage* storage = scope->known_storage_of(impl);
  if (!storage || storage->foreign) return;
  without_gil(what, [&] { (scope->engine().*act)(*storage); });
}

const char* state(const at::Tensor& tensor) {
  Scope* scope = Scope::active();
  c10::StorageImpl* impl = storage_of(tensor);
  Storage* storage = scope && impl ? scope->known_storage_of(impl) : nullptr;
  if (!storage || storage->foreign) return "foreign";
  if (storage->evicted()) return "evicted";
  if (storage->exposed) return "exposed";
  return storage->source() ? "source" : "resident";
}

}  // namespace

void lock_without_gil(std::mutex& mutex) {
  if (PyGILState_Check()) {
    const py::gil_scoped_release release;
    mutex.lock();
  } else {
    mutex.lock();
  }
}

void throw_out_of_budget(const Shortage& shortage, const std::string& op) {
  const py::gil_scoped_acquire gil;
  PyErr_SetString(out_of_budget, describe(shortage, op).c_str());
  python_error error;
  error.persist();
  throw error;
}

}  // namespace coop

PYBIND11_MODULE(_C, module) {
  using namespace coop;
  module.doc() = "Coop's engine and its hook into PyTorch.";
  install_allocator();

  py::enum_<PolicyKind>(module, "PolicyKind")
      .value("coop", PolicyKind::coop)
      .value("dtr", PolicyKind::dtr)
      .value("dte", PolicyKind::dte)
      .value("lru", PolicyKind::lru);
  py::enum_<Placement>(module, "Placement")
      .value("two_ended", Placement::two_ended)
      .value("best_fit", Placement::best_fit);
  py::enum_<CostModel>(module, "CostModel")
      .value("own", CostModel::own)
      .value("exact", CostModel::exact)
      .value("union_find", CostModel::union_find);
  py::class_<Options>(module, "Options")
      .def(py::init<>())
      .def_readwrite("budget", &Options::budget)
      .def_readwrite("alignment", &Options::alignment)
      .def_readwrite("policy", &Options::policy)
      .def_readwrite("placement", &Options::placement)
      .def_readwrite("cost", &Options::cost)
      .def_readwrite("window", &Options::window)
      .def_readwrite("partition", &Options::partition)
      .def_readwrite("per_byte", &Options::per_byte)
      .def_readwrite("keep_dead", &Options::keep_dead)
      .def_readwrite("in_place", &Options::in_place)
      .def_readwrite("move", &Options::move)
      .def_readwrite("rescue", &Options::rescue)
      .def_readwrite("evict", &Options::evict)
      .def_readwrite("tiny", &Options::tiny)
      .def_readwrite("max_depth", &Options::max_depth)
      .def_readwrite("max_versions", &Options::max_versions)
      .def_readwrite("exact_limit", &Options::exact_limit)
      .def_readwrite("copy_bandwidth", &Options::copy_bandwidth)
      .def_readwrite("checks", &Options::checks);

  module.def("set_exception", [](py::object type) { out_of_budget = type.release().ptr(); });
  module.def("open", [](const Options& options, bool events) {
    Scope::open(std::make_unique<Scope>(options));
    Scope::active()->engine().watch(events);
    manage_this_thread(true);
  });
  module.def("close", [] {
    open_scope();
    std::size_t lost = 0;
    {
      const py::gil_scoped_release release;
      lost = Scope::close();
    }
    manage_this_thread(false);
    return lost;
  });
  module.def("is_open", [] { return Scope::active() != nullptr; });
  module.def("manage_this_thread", &manage_this_thread);
  module.def("this_thread_is_managed", &this_thread_is_managed);
  module.def("stats", [] {
    const Stats s = open_scope().engine().stats();
    py::dict d;
#define COOP_STAT(field) d[#field] = s.field
    COOP_STAT(budget);
    COOP_STAT(in_use);
    COOP_STAT(peak);
    COOP_STAT(cached);
    COOP_STAT(free);
    COOP_STAT(largest_free);
    COOP_STAT(sources);
    COOP_STAT(floor);
    COOP_STAT(allocations);
    COOP_STAT(evictions);
    COOP_STAT(rematerialisations);
    COOP_STAT(replays);
    COOP_STAT(moves);
    COOP_STAT(commits);
    COOP_STAT(searches);
    COOP_STAT(ops);
    COOP_STAT(recorded_ops);
    COOP_STAT(storages);
    COOP_STAT(exact_costs);
    COOP_STAT(union_find_costs);
    COOP_STAT(evicted_bytes);
    COOP_STAT(moved_bytes);
    COOP_STAT(op_seconds);
    COOP_STAT(recompute_seconds);
    COOP_STAT(search_seconds);
    COOP_STAT(move_seconds);
    COOP_STAT(fragmentation);
#undef COOP_STAT
    return d;
  });
  module.def("events", [] {
    py::list list;
    for (const Event& event : open_scope().engine().take_events()) {
      list.append(py::make_tuple(name(event.kind), event.time, event.storage, event.offset, event.bytes));
    }
    return list;
  });
  module.def("check", [] { open_scope().engine().check(); });
  module.def("adopt", [](const at::Tensor& tensor) {
    Scope& scope = open_scope();
    Bytes moved = 0;
    if (storage_of(tensor)) without_gil("adopt", [&] { moved = scope.adopt(tensor); });
    return moved;
  });
  module.def("pin", [](const at::Tensor& t) { with_storage(t, "pin", &Engine::pin); });
  module.def("unpin", [](const at::Tensor& t) { with_storage(t, "unpin", &Engine::unpin); });
  module.def("materialise", [](const at::Tensor& t) { with_storage(t, "materialise", &Engine::materialise); });
  module.def("commit", [](const at::Tensor& t) { with_storage(t, "commit", &Engine::commit); });
  module.def("expose", [](const at::Tensor& tensor) {
    Scope* scope = Scope::active();
    c10::StorageImpl* impl = storage_of(tensor);
    if (scope && impl) without_gil("a pointer to a tensor", [&] { scope->expose(impl); });
  });
  module.def("state", &state);

  // The ideal simulator: csrc/ideal.h says what the numbers of a program mean.
  module.def(
      "ideal",
      [](std::vector<std::int64_t> code, std::vector<std::int64_t> last, std::variant<std::int64_t, double> budget,
         const std::string& policy, double limit) {
        const ideal::Policy chosen = ideal::policy_named(policy);
        ideal::Result r;
        {
          const py::gil_scoped_release release;
          r = ideal::play({std::move(code), std::move(last)}, budget, chosen, limit);
        }
        py::dict d;
        d["status"] = ideal::name(r.status);
        d["overhead"] = r.overhead;
        d["budget"] = r.budget;
        d["peak"] = r.peak;
        d["evictions"] = r.evictions;
        d["rematerialisations"] = r.rematerialisations;
        d["baseline_peak"] = r.baseline_peak;
        d["baseline_cost"] = r.baseline_cost;
        return d;
      },
      py::arg("code"), py::arg("last"), py::arg("budget"), py::arg("policy"), py::arg("limit"));
}
