// Python's view of the search for plans.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "plan/plan_search.h"
#include "python/engine_bindings.h"

namespace py = pybind11;

namespace coop {

void bind_plan_search(py::module_& module) {
  py::class_<PlanGraph>(module, "PlanGraph")
      .def(py::init<>())
      .def(
          "node",
          [](PlanGraph& graph, std::int64_t cost, std::int64_t scratch, std::int64_t last,
             std::vector<std::uint32_t> inputs, std::vector<std::uint32_t> outputs,
             std::vector<std::uint32_t> overwritten) {
            graph.nodes.push_back({cost, scratch, last, std::move(inputs), std::move(outputs), std::move(overwritten)});
          })
      .def("value",
           [](PlanGraph& graph, std::int64_t bytes, std::uint32_t node, bool kept, std::vector<std::uint32_t> users) {
             graph.values.push_back({bytes, node, kept, std::move(users)});
           })
      .def("base", [](PlanGraph& graph, std::vector<std::int64_t> base) { graph.base = std::move(base); });
  py::class_<PlanSearch>(module, "PlanSearch")
      .def(py::init<PlanGraph, std::int64_t, const std::vector<Place>&, std::uint64_t>())
      .def("run", &PlanSearch::run, py::call_guard<py::gil_scoped_release>())
      .def("check", &PlanSearch::check)
      .def_property_readonly("best",
                             [](const PlanSearch& search) -> std::optional<std::vector<Place>> {
                               if (!search.best()) return std::nullopt;
                               return *search.best();
                             })
      .def_property_readonly("best_cost", &PlanSearch::best_cost);
}

}  // namespace coop
