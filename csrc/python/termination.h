// SIGTERM, told to a thread of Python at once.
//
// Python's own signal handlers run on the main thread, between two bytecodes: not while it waits
// for another rank. This one writes a byte to a pipe. Python does not know of it, so a script sees
// no handler, and may set its own.
//
// And an end for a process that hangs at its own: a process group waits there for its threads, and
// they for other ranks.
#pragma once

#include <pybind11/pybind11.h>

namespace coop {

void bind_termination(pybind11::module_& module);

}  // namespace coop
