// The engine without torch, in Python: its options, its figures, the player and the ideal simulator.
#include "engine_bindings.h"

#include <pybind11/stl.h>

#include "ideal.h"
#include "player.h"

namespace py = pybind11;

namespace coop {

py::dict to_python(const Stats& s) {
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
  COOP_STAT(records);
  COOP_STAT(looks);
  COOP_STAT(exact_costs);
  COOP_STAT(union_find_costs);
  COOP_STAT(evicted_bytes);
  COOP_STAT(moved_bytes);
  COOP_STAT(op_seconds);
  COOP_STAT(recompute_seconds);
  COOP_STAT(search_seconds);
  COOP_STAT(move_seconds);
  COOP_STAT(fragmentation);
  COOP_STAT(swaps_out);
  COOP_STAT(swaps_in);
  COOP_STAT(swapped_out);
  COOP_STAT(swapped_in);
  COOP_STAT(prefetch_hits);
  COOP_STAT(prefetch_misses);
  COOP_STAT(hidden_seconds);
  COOP_STAT(transfer_seconds);
  COOP_STAT(waited_seconds);
  COOP_STAT(planned_steps);
  COOP_STAT(planned_ops);
  COOP_STAT(plan_losses);
#undef COOP_STAT
  return d;
}

py::list to_python(const std::vector<Event>& events) {
  py::list list;
  for (const Event& event : events) {
    list.append(py::make_tuple(name(event.kind), event.time, event.storage, event.offset, event.bytes, event.value));
  }
  return list;
}

namespace {

void bind_options(py::module_& module) {
  py::enum_<PolicyKind>(module, "PolicyKind")
      .value("coop", PolicyKind::coop)
      .value("dtr", PolicyKind::dtr)
      .value("dte", PolicyKind::dte)
      .value("lru", PolicyKind::lru)
      .value("delta", PolicyKind::delta);
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
      .def_readwrite("swap", &Options::swap)
      .def_readwrite("swap_out", &Options::swap_out)
      .def_readwrite("swap_in", &Options::swap_in)
      .def_readwrite("swap_least", &Options::swap_least)
      .def_readwrite("swap_load", &Options::swap_load)
      .def_readwrite("foresee", &Options::foresee)
      .def_readwrite("needed_only", &Options::needed_only)
      .def_readwrite("in_place", &Options::in_place)
      .def_readwrite("move", &Options::move)
      .def_readwrite("rescue", &Options::rescue)
      .def_readwrite("evict", &Options::evict)
      .def_readwrite("record_backward", &Options::record_backward)
      .def_readwrite("tiny", &Options::tiny)
      .def_readwrite("max_depth", &Options::max_depth)
      .def_readwrite("max_versions", &Options::max_versions)
      .def_readwrite("exact_limit", &Options::exact_limit)
      .def_readwrite("copy_bandwidth", &Options::copy_bandwidth)
      .def_readwrite("checks", &Options::checks);
}

const char* name(Player::Status status) {
  switch (status) {
    case Player::Status::ok: return "ok";
    case Player::Status::out_of_memory: return "out_of_memory";
    case Player::Status::thrash: return "thrash";
  }
  return "?";
}

py::dict play(const Options& options, const Program& program, int steps, double patience, bool watch,
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

// csrc/ideal.h says what the numbers of a program mean.
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

std::vector<Planned::Room> room_of(const Places& places) {
  std::vector<Planned::Room> room;
  for (const auto& [bytes, offset, value] : places) room.push_back({bytes, offset, value});
  return room;
}

}  // namespace

void bind_engine(py::module_& module) {
  bind_options(module);
  py::class_<Program>(module, "Program")
      .def(py::init<>())
      .def("source", &Program::source)
      .def("op", &Program::op)
      .def("hold", &Program::hold)
      .def("release", &Program::release);
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
