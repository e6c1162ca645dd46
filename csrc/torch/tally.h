// Bytes that kernels allocate and free, counted while PyTorch runs on its own: how a recorder sees
// scratch.
#pragma once

#include <pybind11/pybind11.h>

namespace coop {

void bind_tally(pybind11::module_& module);

}  // namespace coop
