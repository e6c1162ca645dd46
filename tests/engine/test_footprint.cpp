// What a kernel takes, packed.
#include "check.h"
#include "engine/footprint.h"

using namespace coop;

namespace {
Block at(Bytes offset, Bytes bytes) {
  Block block;
  block.offset = offset;
  block.bytes = bytes;
  return block;
}
}  // namespace

TEST(scratch_that_is_given_back_leaves_a_hole_that_counts) {
  Footprint footprint;
  const Block scratch = at(1000, 10), more = at(500, 100), result = at(0, 50);
  footprint.take(scratch);
  footprint.take(more);
  footprint.give_back(scratch);
  footprint.take(result);  // too large for the hole
  CHECK_EQUAL(footprint.most(), 160u);
  footprint.take(at(2000, 10));  // fits
  CHECK_EQUAL(footprint.most(), 160u);
  footprint.begin();
  CHECK_EQUAL(footprint.most(), 0u);
}

TEST(the_last_piece_leaves_no_hole) {
  Footprint footprint;
  for (int i = 0; i < 3; ++i) {
    footprint.take(at(100, 40));
    footprint.give_back(at(100, 40));
  }
  footprint.give_back(at(7, 7));  // somebody else's
  CHECK_EQUAL(footprint.most(), 40u);
}

TEST(a_request_goes_to_the_lowest_hole_and_not_to_the_smallest) {
  Footprint footprint;
  const Block large = at(10, 30), wall = at(20, 1), small = at(30, 20), end = at(40, 1);
  for (const Block& block : {large, wall, small, end}) footprint.take(block);
  footprint.give_back(large);
  footprint.give_back(small);
  footprint.take(at(50, 20));
  footprint.take(at(60, 30));
  CHECK_EQUAL(footprint.most(), 82u);
}
