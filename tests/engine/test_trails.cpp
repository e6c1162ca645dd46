// Trails: what is carried from step to step is committed in time, and nothing that is done with an
// op grows with the program.
#include "check.h"
#include "engine/trails.h"
#include "fake_driver.h"

using namespace coop;
using fake::FakeDriver;
using fake::Tensor;

namespace {

Options roomy(Bytes budget, int checks = 1) {
  Options options;
  options.budget = budget;
  options.alignment = 1;
  options.tiny = 0;
  options.checks = checks;
  return options;
}

Tensor* one(FakeDriver& driver, std::vector<Tensor*> inputs, Bytes bytes) {
  return driver.run({.inputs = std::move(inputs), .outputs = {bytes}})[0];
}

// One step of a state: temporaries go first, the old state last, as in Python.
void step(FakeDriver& driver, Tensor*& state, Tensor* with) {
  Tensor* product = one(driver, {state}, state->bytes());
  Tensor* sum = one(driver, {product, with}, state->bytes());
  driver.let_go(*product);
  driver.let_go(*std::exchange(state, sum));
}

void let_go_of_all(FakeDriver& driver) {
  while (!driver.tensors().empty()) {
    Tensor& tensor = driver.tensors().front();
    if (!tensor.gone) driver.let_go(tensor);
    driver.engine().ran(0);
  }
  driver.check_empty();
}

}  // namespace

TEST(a_trail_may_be_as_long_as_its_storage_pays_for) {
  CHECK_EQUAL(Trails::longest(1), 64u);
  CHECK_EQUAL(Trails::longest(200 << 10), 200u);
  CHECK_EQUAL(Trails::longest(1 << 30), 1024u);
}

TEST(a_state_that_is_carried_along_keeps_few_records_and_comes_back_with_few_replays) {
  for (const Bytes bytes : {Bytes{16}, Bytes{1000}}) {
    FakeDriver driver(roomy(10 * bytes, 0));
    Tensor* with = driver.source(bytes);
    Tensor* state = one(driver, {}, bytes);
    for (int i = 0; i < 5000; ++i) {
      step(driver, state, with);
      CHECK(driver.engine().stats().records <= 4096 + 20);
      if (i < 3000 || i % 100) continue;
      const std::uint64_t before = driver.replays;
      driver.engine().compact();
      driver.read(*state);
      CHECK(driver.replays - before <= 2);
    }
    CHECK(driver.engine().stats().commits > 0);
    let_go_of_all(driver);
  }
}

TEST(a_state_that_is_always_evicted_when_it_is_counted_is_committed_when_it_is_back) {
  FakeDriver driver(roomy(1000, 3));
  Tensor* with = driver.source(16);
  Tensor* state = one(driver, {}, 16);
  for (int i = 0; i < 300; ++i) {
    step(driver, state, with);
    for (int other = 0; other < 50; ++other) driver.let_go(*one(driver, {}, 16));
    CHECK(driver.engine().stats().records <= 200);
  }
  CHECK(driver.engine().stats().commits > 0);
  driver.read(*state);
  let_go_of_all(driver);
}

TEST(what_is_held_along_the_way_has_no_trail) {
  FakeDriver driver(roomy(100000));
  Tensor* last = driver.source(16);
  for (int i = 0; i < 3000; ++i) {
    Tensor* inner = one(driver, {last}, 16);
    last = one(driver, {inner}, 16);
    driver.let_go(*inner);
  }
  CHECK_EQUAL(driver.engine().stats().commits, 0u);
  CHECK_EQUAL(driver.engine().stats().records, 6000u);
  let_go_of_all(driver);
}

TEST(a_trail_is_counted_and_not_guessed_from_its_age) {
  FakeDriver driver(roomy(100000));
  Tensor* old = one(driver, {}, 16);
  for (int i = 0; i < 5000; ++i) driver.let_go(*one(driver, {}, 16));
  Tensor* made = one(driver, {old}, 16);
  driver.let_go(*old);
  one(driver, {}, 16);
  CHECK_EQUAL(driver.engine().stats().commits, 0u);
  driver.read(*made);
  let_go_of_all(driver);
}

// Keys and values of a decoder: each step adds to a large storage, and what it adds was made from
// all that came before.
TEST(looking_at_records_takes_no_longer_at_the_end_of_a_long_program) {
  constexpr int kLayers = 6, kSteps = 1000;
  FakeDriver driver(roomy(64 << 20, 0));
  std::vector<Tensor*> caches;
  for (int i = 0; i < kLayers; ++i) caches.push_back(one(driver, {}, 100));
  std::uint64_t looks = 0, most_records = 0;
  for (int i = 0; i < kSteps; ++i) {
    const std::uint64_t before = driver.engine().stats().looks;
    Tensor* hidden = driver.source(20);
    for (Tensor*& cache : caches) {
      Tensor* longer = one(driver, {cache, hidden}, cache->bytes() + 1);
      driver.let_go(*std::exchange(cache, longer));
      Tensor* read = one(driver, {hidden, cache}, 20);
      driver.let_go(*std::exchange(hidden, read));
    }
    driver.let_go(*hidden);
    looks = driver.engine().stats().looks - before;
    CHECK(looks <= 40 * 2 * kLayers);
    most_records = std::max<std::uint64_t>(most_records, driver.engine().stats().records);
  }
  CHECK(most_records < 6000);
  let_go_of_all(driver);
}
