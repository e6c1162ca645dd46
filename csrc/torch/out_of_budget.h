// The Python exception for lack of room.
#pragma once

#include <string>

#include "engine/engine.h"

namespace coop {

// Raises coop.OutOfBudget. May be called with or without the GIL.
[[noreturn]] void throw_out_of_budget(const Shortage& shortage, const std::string& op);

}  // namespace coop
