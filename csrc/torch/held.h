// Torch storages whose bytes are read outside of any operator: by the methods of Python's storage
// objects, by torch.save.
#pragma once

#include <pybind11/pybind11.h>

namespace coop {

// Binds Held(storage): from its making to `release` the storage is resident and stays in place, and
// its pointer may be taken without being exposed. A scope does not end before all have been
// released.
void bind_held(pybind11::module_& module);

}  // namespace coop
