// DTE's score (MegTaiChi, 2022): as DTR's, with the free neighbours' bytes counted in.
#pragma once

#include "engine/search.h"

namespace coop {

struct Dte {
  static double of(SearchContext& context, Block& block) {
    return context.score(*block.storage) / static_cast<double>(block.bytes + block.free_beside());
  }
};

}  // namespace coop
