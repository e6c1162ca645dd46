// The engine without torch, in Python: its options, its figures, the player and the ideal
// simulator.
#include "python/engine_bindings.h"

#include <pybind11/stl.h>

#include "simulate/ideal.h"
#include "simulate/player.h"

namespace py = pybind11;

namespace coop {

py::dict to_python(const Stats& s) {
  py::dict d;
#define COOP_STAT(name, type, value, meaning) d[#name] = s.name;
  COOP_STATS(COOP_STAT)
#undef COOP_STAT
  return d;
}

py::list to_python(const std::vector<Event>& events) {
  py::list list;
  for (const Event& event : events) {
    list.append(py::make_tuple(name(event.kind), event.time, event.storage, event.offset, event.bytes, event.value,
                               event.waited));
  }
  return list;
}

namespace {

void bind_options(py::module_& module) {
  py::enum_<Placement>(module, "Placement")
      .value("two_ended", Placement::two_ended)
      .value("best_fit", Placement::best_fit);
  py::enum_<CostModel>(module, "CostModel")
      .value("own", CostModel::own)
      .value("exact", CostModel::exact)
      .value("union_find", CostModel::union_find);
  py::class_<Options> options(module, "Options");
  options.def(py::init<>());
#define COOP_OPTION(name, type, value, meaning) options.def_readwrite(#name, &Options::name, meaning);
  COOP_OPTIONS(COOP_OPTION)
#undef COOP_OPTION
  module.def("policy_names", &policy_names);
}

const char* name(Player::Status status) {
  switch (status) {
    case Player::Status::ok: return "ok";
    case Player::Status::out_of_memory: return "out_of_memory";
    case Player::Status::thrash: return "thrash";
  }
  return "?";
}

py::dict play(const Options& options, const TraceProgram& program, int steps, double patience, bool watch,
              std::shared_ptr<Planned> plan) {
  Player player(options, program, patience, watch);
  if (plan) player.follow(std::move(plan));
  Player::Status status;
  {
    const py::gil_scoped_release release;
    status = player.play(steps);
  }
  py::dict d;
  d["status"] = name(status);
  d["at"] = player.at();
  d["needed"] = player.shortage().needed;
  d["enough"] = player.shortage().enough;
  d["floor_setter"] = player.floor_setter();
  d["stats"] = to_python(player.engine().stats());
  d["events"] = to_python(player.engine().take_events());
  d["why_lost"] = player.engine().why_lost();
  d["replays"] = player.replays();
  return d;
}

// csrc/simulate/ideal.h says what the numbers of a program mean.
py::dict play_ideal(std::vector<std::int64_t> code, std::vector<std::int64_t> last,
                    std::variant<std::int64_t, double> budget, const std::string& policy, double limit) {
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
}

using Places = std::vector<std::tuple<Bytes, Bytes, std::int64_t>>;

std::vector<Planned::Place> room_of(const Places& places) {
  std::vector<Planned::Place> room;
  for (const auto& [bytes, offset, value] : places) room.push_back({bytes, offset, value});
  return room;
}

}  // namespace

void bind_engine(py::module_& module) {
  bind_options(module);
  py::class_<TraceProgram>(module, "TraceProgram")
      .def(py::init<>())
      .def("source", &TraceProgram::source)
      .def("op", &TraceProgram::op)
      .def("hold", &TraceProgram::hold)
      .def("release", &TraceProgram::release);
  py::class_<Planned, std::shared_ptr<Planned>> planned(module, "Planned");
  py::enum_<Planned::Kind>(planned, "Kind")
      .value("compute", Planned::Kind::compute)
      .value("free", Planned::Kind::free)
      .value("out", Planned::Kind::out)
      .value("in", Planned::Kind::in);
  planned.def(py::init<>())
      .def("node",
           [](Planned& plan, std::string name, bool silent,
              const std::vector<std::tuple<std::uint32_t, Bytes, std::int64_t>>& outputs, const Places& places) {
             std::vector<Planned::Output> made;
             for (const auto& [value, bytes, over] : outputs) made.push_back({value, bytes, over});
             plan.node(std::move(name), silent, std::move(made), room_of(places));
           })
      .def("step", [](Planned& plan, Planned::Kind kind, std::uint32_t number, std::uint32_t node,
                      const Places& places) { plan.step(kind, number, node, room_of(places)); })
      .def_readwrite("in_latency", &Planned::in_latency)
      .def_readwrite("in_bandwidth", &Planned::in_bandwidth)
      .def_readwrite("out_latency", &Planned::out_latency)
      .def_readwrite("out_bandwidth", &Planned::out_bandwidth);
  module.def("play", &play, py::arg("options"), py::arg("program"), py::arg("steps"), py::arg("patience"),
             py::arg("watch"), py::arg("plan") = nullptr);
  module.def("ideal", &play_ideal, py::arg("code"), py::arg("last"), py::arg("budget"), py::arg("policy"),
             py::arg("limit"));
}

}  // namespace coop
