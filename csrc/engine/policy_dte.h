// DTE's score (MegTaiChi, 2022): like DTR's, but the size includes the free neighbours.
#pragma once

#include "engine/search.h"

namespace coop {

struct Dte {
  static double of(SearchContext& context, Block& block) {
    return context.score(*block.storage) / static_cast<double>(block.bytes + block.free_beside());
  }
};

}  // namespace coop
