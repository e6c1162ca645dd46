// Python's view of what the engine takes and gives, for both drivers.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "engine/engine.h"

namespace coop {

pybind11::dict to_python(const Stats& stats);
pybind11::list to_python(const std::vector<Event>& events);
// Options and what belongs to them, and the player.
void bind_engine(pybind11::module_& module);
void bind_plan_search(pybind11::module_& module);

}  // namespace coop
