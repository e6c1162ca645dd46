// Measured density separates cheap from expensive results.
#include "check.h"
#include "engine/density.h"

using namespace coop;

TEST(two_classes_are_separated_and_go_to_opposite_sides) {
  DensityClasses classes;
  check::Random random(1);
  CHECK_EQUAL(classes.side(1e-9), Side::low);  // nothing known yet
  for (int i = 0; i < 2000; ++i) {
    classes.add(1e-11 * static_cast<double>(random.between(50, 200)) / 100, 4096);  // elementwise
    classes.add(1e-8 * static_cast<double>(random.between(50, 200)) / 100, 1024);   // products
  }
  CHECK_EQUAL(classes.side(1e-11), Side::high);
  CHECK_EQUAL(classes.side(2e-11), Side::high);
  CHECK_EQUAL(classes.side(5e-9), Side::low);
  CHECK_EQUAL(classes.side(1e-8), Side::low);
  CHECK_EQUAL(classes.side(0), Side::low);  // unknown
}

TEST(the_threshold_follows_the_program) {
  DensityClasses classes;
  for (int i = 0; i < 4000; ++i) classes.add(i % 2 ? 1e-12 : 1e-10, 1000);
  CHECK_EQUAL(classes.side(1e-10), Side::low);
  for (int i = 0; i < 40000; ++i) classes.add(i % 2 ? 1e-10 : 1e-7, 1000);
  CHECK_EQUAL(classes.side(1e-10), Side::high);
  CHECK_EQUAL(classes.side(1e-7), Side::low);
}

TEST(densities_out_of_range_and_empty_results_do_no_harm) {
  DensityClasses classes;
  for (int i = 0; i < 100; ++i) {
    classes.add(1e-300, 1);
    classes.add(1e300, 1);
    classes.add(0, 100);
    classes.add(-1, 100);
    classes.add(1e-9, 0);
  }
  CHECK_EQUAL(classes.side(1e-300), Side::high);
  CHECK_EQUAL(classes.side(1e300), Side::low);
}
