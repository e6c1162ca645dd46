// The rules, one by one, on small programs whose every byte is known.
//
// Alignment is one byte, so that sizes mean what they say; every rule check of the engine runs at
// every event. The file is long because the nine rules share these small programs.
#include <algorithm>
#include <map>

#include "check.h"
#include "fake_driver.h"

using namespace coop;
using fake::Call;
using fake::FakeDriver;
using fake::Tensor;

namespace {

Options small(Bytes budget, const std::string& policy = "coop") {
  Options options;
  options.budget = budget;
  options.alignment = 1;
  options.policy = policy;
  options.tiny = 0;
  options.checks = 2;
  return options;
}

Tensor* one(FakeDriver& driver, std::vector<Tensor*> inputs, Bytes bytes, Seconds cost = 1e-6) {
  return driver.run({.inputs = std::move(inputs), .outputs = {bytes}, .cost = cost})[0];
}
void in_place(FakeDriver& driver, Tensor* target, std::vector<Tensor*> inputs = {}, InPlace how = InPlace::on_old) {
  driver.run({.inputs = std::move(inputs), .target = target, .in_place = how});
}
// Raw memory for a moment: whatever is in the way leaves.
void push_out(FakeDriver& driver, Bytes bytes) { driver.engine().free(driver.allocate(bytes)->offset); }
// All that can leave leaves.
void evict_all(FakeDriver& driver) { driver.engine().compact(); }

void finish(FakeDriver& driver) {
  while (!driver.tensors().empty()) {
    Tensor& tensor = driver.tensors().front();
    if (!tensor.gone) {
      driver.let_go(tensor);
    } else {
      driver.engine().ran(0);
    }
  }
  driver.check_empty();
}

bool evicted(const Tensor* tensor) { return tensor->state == Tensor::State::detached; }

}  // namespace

// --- rules 1 and 2 ---------------------------------------------------------------------------------------------------------

TEST(rule_1_a_request_beyond_the_budget_is_a_shortage_and_changes_nothing) {
  for (const std::string& policy : policy_names()) {
    FakeDriver driver(small(100, policy));
    Tensor* source = driver.source(10);
    Tensor* made = one(driver, {source}, 20);
    for (const Bytes bytes : {Bytes{101}, Bytes{1} << 40, SIZE_MAX / 2, SIZE_MAX}) {
      CHECK_THROWS(Shortage, driver.allocate(bytes));
    }
    CHECK_EQUAL(driver.engine().stats().evictions, 0u);
    driver.read(*made);
    finish(driver);
  }
}

TEST(rule_1_bytes_in_use_and_their_peak_are_counted_and_stay_within_the_budget) {
  FakeDriver driver(small(100));
  Tensor* source = driver.source(10);
  Tensor* a = one(driver, {source}, 40);
  Stats stats = driver.engine().stats();
  CHECK_EQUAL(stats.in_use, 50u);
  CHECK_EQUAL(stats.peak, 50u);
  CHECK_EQUAL(stats.sources, 10u);
  CHECK_EQUAL(stats.floor, 50u);
  Tensor* b = driver.run({.inputs = {a}, .outputs = {20}, .scratch = {10}})[0];
  stats = driver.engine().stats();
  CHECK_EQUAL(stats.in_use, 70u);
  CHECK_EQUAL(stats.peak, 80u);
  CHECK_EQUAL(stats.floor, 80u);
  driver.let_go(*a);  // b may need it, but nobody uses it
  stats = driver.engine().stats();
  CHECK_EQUAL(stats.in_use, 30u);
  CHECK_EQUAL(stats.cached + stats.free, 70u);
  driver.read(*b);
  finish(driver);
}

TEST(rule_1_the_peak_counts_what_a_replay_takes_over_in_place) {
  FakeDriver driver(small(100));
  Tensor* source = driver.source(10);
  Tensor* target = one(driver, {source}, 30);
  Tensor* reader = one(driver, {target}, 10);
  in_place(driver, target);
  evict_all(driver);
  driver.read(*reader);  // the old version is resident again, and nobody's
  one(driver, {source}, 40);
  CHECK_EQUAL(driver.engine().stats().cached, 30u);
  CHECK_EQUAL(driver.engine().stats().peak, 60u);
  driver.read(*target);  // made in the old version's bytes
  CHECK_EQUAL(driver.engine().stats().in_use, 90u);
  CHECK_EQUAL(driver.engine().stats().peak, 90u);
  finish(driver);
}

TEST(rule_2_reading_brings_back_what_was_evicted) {
  for (const std::string& policy : policy_names()) {
    FakeDriver driver(small(100, policy));
    Tensor* source = driver.source(10);
    Tensor* a = one(driver, {source}, 40);
    Tensor* b = one(driver, {a}, 40);
    Tensor* c = one(driver, {source}, 50);  // no room for all three
    CHECK(evicted(a) || evicted(b));
    for (Tensor* tensor : {a, b, c, a, c, b}) {
      driver.read(*tensor);
      CHECK(!evicted(tensor));
    }
    CHECK(driver.replays > 0);
    finish(driver);
  }
}

// --- rule 3 ----------------------------------------------------------------------------------------------------------------

TEST(rule_3_what_is_pinned_stays_but_may_be_moved) {
  for (const std::string& policy : policy_names()) {
    FakeDriver driver(small(100, policy));
    Tensor* source = driver.source(10);
    Tensor* a = one(driver, {source}, 30);
    Tensor* pinned = one(driver, {source}, 20);
    driver.pin(*pinned);
    push_out(driver, 70);  // only if the pinned one makes way
    CHECK(evicted(a) && !evicted(pinned));
    CHECK_THROWS(Shortage, driver.allocate(71));
    driver.read(*pinned);
    driver.pin(*pinned);
    driver.unpin(*pinned);
    CHECK_THROWS(Shortage, driver.allocate(71));  // pins are counted
    driver.unpin(*pinned);
    push_out(driver, 90);
    CHECK(evicted(pinned));
    driver.read(*pinned);
    driver.read(*a);
    finish(driver);
  }
}

TEST(rule_3_unpinning_what_is_not_pinned_is_an_error_and_not_a_pin_for_ever) {
  FakeDriver driver(small(100));
  Tensor* source = driver.source(10);
  CHECK_THROWS(std::logic_error, driver.engine().unpin(*source->storage));
  finish(driver);
}

TEST(rule_3_outputs_already_placed_are_never_victims_of_the_next_output) {
  for (const std::string& policy : policy_names()) {
    FakeDriver driver(small(100, policy));
    Tensor* source = driver.source(10);
    const auto pair =
        driver.run({.inputs = {source}, .outputs = {40, 40}, .cost = 1e-9});  // cheaper than anything else
    evict_all(driver);
    Tensor* dear = one(driver, {source}, 50, 1);
    CHECK(evicted(pair[0]) && evicted(pair[1]));
    driver.read(*pair[0]);  // room for both, at the price of the dear one
    CHECK(!evicted(pair[0]) && !evicted(pair[1]) && evicted(dear));
    driver.read(*pair[1]);
    finish(driver);
  }
}

TEST(rule_3_scratch_inside_a_kernel_does_not_push_out_operands_or_outputs) {
  for (const std::string& policy : policy_names()) {
    FakeDriver driver(small(100, policy));
    driver.watch_requests();
    Tensor* source = driver.source(10);
    Tensor* a = one(driver, {source}, 20, 1e-9);
    Tensor* idle = one(driver, {source}, 30, 1);
    driver.run({.inputs = {a}, .outputs = {20, 10}, .scratch = {10, 10, 30}, .cost = 1e-9});
    CHECK(evicted(idle) && !evicted(a));
    evict_all(driver);
    for (Tensor& tensor : driver.tensors()) driver.read(tensor);  // the same scratch in the replay
    finish(driver);
  }
}

// --- rule 4 ----------------------------------------------------------------------------------------------------------------

TEST(rule_4_in_place_versions_come_back_each_with_its_own_bytes) {
  for (const bool renaming : {true, false}) {
    const check::Context context("renaming", renaming);
    Options options = small(400);
    options.in_place = renaming;
    FakeDriver driver(options);
    Tensor* source = driver.source(10);
    Tensor* target = one(driver, {source}, 40);
    std::vector<Tensor*> readers;
    for (int i = 0; i < 4; ++i) {  // each version has a reader that keeps it in the lineage
      readers.push_back(one(driver, {target}, 20));
      in_place(driver, target, {source});
    }
    for (int i = 0; i < 3; ++i) {
      evict_all(driver);
      for (Tensor* reader : readers) driver.read(*reader);
      evict_all(driver);
      driver.read(*target);
    }
    CHECK(driver.replays > 10);
    finish(driver);
  }
}

TEST(rule_4_an_old_version_that_others_wait_for_is_copied_and_not_overwritten_in_a_replay) {
  FakeDriver driver(small(200));
  Tensor* source = driver.source(10);
  Tensor* target = one(driver, {source}, 30);
  Tensor* reader = one(driver, {target}, 30);  // of the old version
  in_place(driver, target);
  Tensor* both = one(driver, {target, reader}, 10);
  for (int i = 0; i < 2; ++i) {
    evict_all(driver);
    driver.read(*both);  // one walk brings back the old version, the reader and the new one
  }
  driver.read(*reader);
  driver.read(*target);
  finish(driver);
}

TEST(rule_4_an_op_that_fills_its_target_runs_again_for_another_output_when_the_target_is_gone) {
  FakeDriver driver(small(200));
  Tensor* source = driver.source(10);
  Tensor* target = one(driver, {source}, 30);
  Tensor* other =
      driver.run({.inputs = {source}, .outputs = {20}, .target = target, .in_place = InPlace::from_scratch})[0];
  driver.engine().commit(*target->storage);  // the op no longer makes it
  evict_all(driver);
  CHECK(evicted(other) && !evicted(target));
  driver.read(*other);
  driver.read(*target);
  driver.let_go(*target);
  evict_all(driver);
  driver.read(*other);
  finish(driver);
}

TEST(rule_4_what_nobody_holds_stays_until_its_room_is_needed_or_leaves_at_once) {
  for (const bool keep : {true, false}) {
    const check::Context context("keep_dead", keep);
    Options options = small(200);
    options.keep_dead = keep;
    FakeDriver driver(options);
    Tensor* source = driver.source(10);
    one(driver, {source}, 50);
    evict_all(driver);  // something is evicted: recomputing has begun
    Tensor* a = one(driver, {source}, 30);
    Tensor* b = one(driver, {a}, 40);
    driver.let_go(*a);
    CHECK_EQUAL(driver.engine().stats().cached, keep ? 30u : 0u);
    CHECK_EQUAL(driver.engine().stats().free, keep ? 120u : 150u);
    evict_all(driver);
    driver.read(*b);
    CHECK_EQUAL(driver.replays, 2u);
    CHECK_EQUAL(driver.engine().stats().cached, keep ? 30u : 0u);  // and again after the replay
    driver.pin(*b);
    push_out(driver, 150);  // all but the source and b: the dead one counts as free
    CHECK_EQUAL(driver.engine().stats().cached, 0u);
    driver.read(*b);
    driver.unpin(*b);
    finish(driver);
  }
}

TEST(rule_4_a_recomputation_that_does_not_fit_at_once_is_done_in_small_steps) {
  // Twenty ops whose results cannot be resident together, each made from the one before and a
  // common input.
  for (const std::string& policy : policy_names()) {
    const check::Context context("policy", policy);
    FakeDriver driver(small(100, policy));
    Tensor* source = driver.source(10);
    Tensor* common = one(driver, {source}, 20);
    std::vector<Tensor*> chain{one(driver, {common}, 25)};
    for (int i = 0; i < 20; ++i) chain.push_back(one(driver, {chain.back(), common}, 25));
    for (std::size_t i : {20u, 0u, 10u, 19u, 5u}) {
      evict_all(driver);
      driver.read(*chain[i]);
    }
    finish(driver);
  }
}

// --- rule 5 ----------------------------------------------------------------------------------------------------------------

TEST(rule_5_what_needs_the_old_value_of_a_source_is_resident_and_committed_before_it_is_overwritten) {
  for (const bool outside : {false, true}) {
    const check::Context context("outside the arena", outside);
    FakeDriver driver(small(300));
    Tensor* weight = outside ? driver.foreign(20) : driver.source(20);
    Tensor* direct = one(driver, {weight}, 30);
    Tensor* between = one(driver, {weight}, 30);
    Tensor* behind = one(driver, {between}, 30);  // needs the weight through something that nobody holds
    Tensor* further = one(driver, {direct}, 30);  // needs only what is committed
    driver.let_go(*between);
    evict_all(driver);
    CHECK(evicted(direct) && evicted(behind) && evicted(further));
    in_place(driver, weight);
    CHECK(!evicted(direct) && direct->storage->source());
    CHECK(!evicted(behind) && behind->storage->source());
    CHECK(further->storage->producer != nullptr);
    evict_all(driver);
    for (Tensor* tensor : {weight, direct, behind, further}) driver.read(*tensor);
    in_place(driver, weight);  // nothing depends on it now
    CHECK_EQUAL(driver.engine().stats().commits, 2u);
    finish(driver);
  }
}

TEST(rule_5_a_pin_keeps_a_value_even_if_nobody_holds_it) {
  FakeDriver driver(small(300));
  Tensor* weight = driver.source(20);
  Tensor* pinned = one(driver, {weight}, 30);
  driver.pin(*pinned);
  Storage* storage = pinned->storage;
  driver.let_go(*pinned);
  in_place(driver, weight);
  CHECK(storage->source() && storage->resident());
  driver.read(*weight);
  finish(driver);
}

TEST(rule_5_making_a_source_safe_does_not_forget_operands_that_only_dead_ops_read) {
  FakeDriver driver(small(300));
  Tensor* weight = driver.foreign(20);
  Tensor* batch = driver.foreign(20);
  Tensor* made = one(driver, {weight, batch}, 30);
  driver.let_go(*made);               // its op is dead, and not swept yet
  in_place(driver, weight, {batch});  // both are operands of an op that is about to run
  driver.read(*weight);
  finish(driver);
}

TEST(rule_5_what_was_made_from_a_storage_is_settled_before_a_pointer_to_it_escapes) {
  FakeDriver driver(small(300));
  Tensor* source = driver.source(20);
  Tensor* a = one(driver, {source}, 30);
  Tensor* b = one(driver, {a}, 30);
  evict_all(driver);
  driver.expose(*a);
  driver.write_behind(*a);
  evict_all(driver);
  driver.read(*a);
  driver.read(*b);  // of the bytes that a had
  Tensor* c = one(driver, {a}, 30);
  driver.write_behind(*a);
  evict_all(driver);
  driver.read(*c);  // likewise: recorded with a snapshot
  finish(driver);
}

TEST(rule_5_letting_go_while_an_op_runs_does_not_commit_what_the_op_overwrites) {
  FakeDriver driver(small(300));
  Tensor* source = driver.source(20);
  Tensor* target = one(driver, {source}, 30);
  driver.run({.target = target, .during = [&] { driver.let_go(*source); }});
  evict_all(driver);
  driver.read(*target);
  finish(driver);
}

TEST(rule_5_a_source_overwritten_by_a_failing_kernel_is_as_far_as_the_kernel_got) {
  for (const bool recomputable : {false, true}) {
    for (const bool renaming : {false, true}) {
      const check::Context a("recomputable", recomputable), b("renaming", renaming);
      Options options = small(300);
      options.in_place = renaming;
      FakeDriver driver(options);
      Tensor* source = driver.source(20);
      Tensor* target = recomputable ? one(driver, {source}, 30) : source;
      Tensor* reader = one(driver, {target}, 30);
      CHECK_THROWS(fake::KernelError, driver.run({.target = target, .fails = true}));
      evict_all(driver);
      driver.read(*target);
      driver.read(*reader);
      finish(driver);
    }
  }
}

// --- rule 7 ----------------------------------------------------------------------------------------------------------------

TEST(rule_7_a_request_takes_one_cheap_run_and_lands_there) {
  FakeDriver driver(small(100));
  driver.watch_requests();  // checks that victims are neighbours
  Tensor* source = driver.source(20);
  std::vector<Tensor*> made;
  for (const Seconds cost : {100.0, 100.0, 1.0, 1.0, 100.0, 100.0, 1.0, 100.0})
    made.push_back(one(driver, {source}, 10, cost));
  Block* block = driver.allocate(20);
  CHECK(evicted(made[2]) && evicted(made[3]));
  CHECK_EQUAL(std::count_if(made.begin(), made.end(), evicted), 2);
  driver.engine().free(block->offset);
  CHECK_EQUAL(driver.windows, 1u);
  finish(driver);
}

TEST(rule_7_a_source_in_the_way_is_moved_aside_and_keeps_its_bytes) {
  for (const bool move : {true, false}) {
    const check::Context context("move", move);
    Options options = small(100);
    options.move = move;
    options.rescue = false;
    FakeDriver driver(options);
    driver.watch_requests();
    Tensor* first = driver.source(10);
    Tensor* low = one(driver, {first}, 40);
    Tensor* middle = driver.source(10);
    Tensor* high = one(driver, {first}, 40);
    CHECK_EQUAL(middle->offset, 50u);
    if (move) {
      push_out(driver, 80);
      CHECK_EQUAL(middle->offset, 10u);
      CHECK_EQUAL(driver.engine().stats().moves, 1u);
    } else {
      CHECK_THROWS(Shortage, push_out(driver, 80));
      CHECK_EQUAL(middle->offset, 50u);
    }
    for (Tensor* tensor : {first, low, middle, high}) driver.read(*tensor);
    finish(driver);
  }
}

TEST(rule_7_other_policies_move_only_where_nothing_else_helps) {
  for (const std::string policy : {"dtr", "dte", "lru"}) {
    for (const bool rescue : {true, false}) {
      const check::Context a("policy", policy), b("rescue", rescue);
      Options options = small(100, policy);
      options.rescue = rescue;
      FakeDriver driver(options);
      Tensor* first = driver.source(10);
      one(driver, {first}, 40);
      Tensor* middle = driver.source(10);
      one(driver, {first}, 40);
      push_out(driver, 40);
      CHECK_EQUAL(driver.engine().stats().moves, 0u);
      if (rescue) {
        push_out(driver, 80);
        CHECK_EQUAL(driver.engine().stats().moves, 1u);
      } else {
        Shortage shortage;
        try {
          push_out(driver, 80);
        } catch (const Shortage& caught) {
          shortage = caught;
        }
        CHECK_EQUAL(shortage.largest, 40u);  // what cannot be moved is not promised
        CHECK_EQUAL(shortage.enough, 140u);
      }
      driver.read(*middle);
      finish(driver);
    }
  }
}

// --- rule 8 ----------------------------------------------------------------------------------------------------------------

TEST(rule_8_a_shortage_tells_the_numbers_and_the_budget_that_would_do) {
  const auto program = [](Bytes budget) {
    FakeDriver driver(small(budget));
    Tensor* source = driver.source(20);
    Tensor* exposed = driver.source(15);
    driver.expose(*exposed);
    Tensor* pinned = one(driver, {source}, 10);
    driver.pin(*pinned);
    one(driver, {source}, 5);
    try {
      driver.run({.inputs = {source}, .outputs = {30, 40}, .scratch = {7}});
      finish(driver);
      return Shortage{};
    } catch (const Shortage& shortage) {
      driver.check_sums();
      finish(driver);
      return shortage;
    }
  };
  const Shortage shortage = program(100);
  CHECK_EQUAL(shortage.needed, 40u);
  CHECK_EQUAL(shortage.budget, 100u);
  CHECK_EQUAL(shortage.locked, 20u);  // the operand
  CHECK_EQUAL(shortage.exposed, 15u);
  CHECK_EQUAL(shortage.pinned, 10u);
  CHECK_EQUAL(shortage.scratch, 37u);  // scratch and the first output
  CHECK_EQUAL(shortage.largest, 18u);
  CHECK_EQUAL(shortage.enough, 122u);
  CHECK(std::string(shortage.what()).size() > 0);
  CHECK_EQUAL(program(shortage.enough).needed, 0u);
}

TEST(rule_8_the_program_goes_on_after_a_shortage) {
  for (const std::string& policy : policy_names()) {
    FakeDriver driver(small(100, policy));
    Tensor* source = driver.source(30);
    Tensor* a = one(driver, {source}, 40);
    CHECK_THROWS(Shortage, one(driver, {a, source}, 40));
    driver.check_sums();
    driver.read(*a);
    Tensor* b = one(driver, {source}, 60);
    driver.read(*a);
    driver.read(*b);
    finish(driver);
  }
}

TEST(rule_8_an_exception_in_a_replay_leaves_everything_consistent_and_the_next_try_works) {
  for (const bool in_place_too : {false, true}) {
    const check::Context context("in place", in_place_too);
    FakeDriver driver(small(200));
    Tensor* source = driver.source(10);
    Tensor* a = one(driver, {source}, 30);
    Tensor* b = driver.run({.inputs = {a}, .outputs = {20, 10}, .scratch = {5, 5}})[0];
    if (in_place_too) {
      in_place(driver, a, {b});
      in_place(driver, b, {a}, InPlace::from_scratch);
    }
    for (int failures = 1; failures <= 3; ++failures) {
      evict_all(driver);
      driver.spoil_all(failures);
      int thrown = 0;
      for (Tensor* tensor : {b, a}) {
        for (int tries = 0; tries < 100; ++tries) {
          try {
            driver.read(*tensor);
            break;
          } catch (const fake::ReplayError&) {
            ++thrown;
            driver.check_sums();
            CHECK(evicted(tensor));
          }
        }
        CHECK(!evicted(tensor));
      }
      CHECK(thrown >= failures);
    }
    driver.spoil_all(0);
    finish(driver);
  }
}

TEST(rule_8_commit_pin_and_overwriting_that_fail_change_nothing) {
  FakeDriver driver(small(100));
  Tensor* source = driver.source(10);
  Tensor* a = one(driver, {source}, 40);
  evict_all(driver);
  driver.spoil_all(5);
  CHECK_THROWS(fake::ReplayError, driver.pin(*a));
  CHECK_THROWS(fake::ReplayError, driver.engine().commit(*a->storage));
  CHECK_THROWS(fake::ReplayError, driver.expose(*a));
  CHECK_THROWS(fake::ReplayError, in_place(driver, source));  // a would lose its source
  CHECK_THROWS(fake::ReplayError, driver.engine().materialise(*a->storage));
  driver.check_sums();
  CHECK(a->storage->producer && a->storage->claims.pins == 0 && a->storage->claims.locks == 0);
  driver.read(*a);
  driver.read(*source);
  finish(driver);
}

TEST(rule_8_freeing_what_was_not_handed_out_is_an_error) {
  FakeDriver driver(small(100));
  Tensor* source = driver.source(10);
  driver.engine().free(50);  // where a tensor dies, nothing can be thrown: it is told later
  CHECK_THROWS(std::logic_error, driver.engine().check());
  driver.engine().free(source->offset);  // somebody's storage
  CHECK_THROWS(std::logic_error, driver.engine().check());
  CHECK(driver.engine().bind(50, 10, &driver) == nullptr);
  driver.check_sums();
  finish(driver);
}

// --- versions and depth ----------------------------------------------------------------------------------------------------

TEST(copy_on_write_leaves_the_old_version_behind_only_while_somebody_reads_it) {
  Options options = small(100);
  options.in_place = false;
  FakeDriver driver(options);
  Tensor* source = driver.source(10);
  Tensor* target = one(driver, {source}, 20);
  driver.run({.inputs = {source}, .target = target, .in_place = InPlace::from_scratch, .scratch = {5, 5}});
  CHECK_EQUAL(driver.engine().stats().storages, 2u);  // nobody read the old version
  Tensor* reader = one(driver, {target}, 10);
  driver.run({.inputs = {source}, .target = target, .in_place = InPlace::from_scratch, .scratch = {30, 5}});
  CHECK_EQUAL(driver.engine().stats().storages, 4u);
  evict_all(driver);
  driver.read(*reader);
  driver.read(*target);
  finish(driver);
}

TEST(a_chain_that_is_too_deep_is_noticed) {
  Options options = small(1000);
  options.max_depth = 5;
  FakeDriver driver(options);
  Tensor* last = driver.source(10);
  for (int i = 0; i < 20; ++i) {
    last = one(driver, {last}, 10);
    CHECK(!last->storage->producer || last->storage->producer->depth < 5);
  }
  CHECK_EQUAL(driver.engine().stats().recorded_ops, 17u);
  finish(driver);
}

TEST(a_chain_of_100000_ops_is_recomputed_and_dropped_without_recursion_or_leaks) {
  Options options = small(2000);
  options.checks = 0;
  options.max_depth = 1u << 20;
  FakeDriver driver(options);
  Tensor* source = driver.source(8);
  std::vector<Tensor*> held{source};  // one in a thousand, so that no trail is cut
  Tensor* last = source;
  for (int i = 0; i < 100000; ++i) {
    Tensor* next = one(driver, {last}, 8);
    if (last != held.back()) driver.let_go(*last);
    if (i % 1000 == 0) held.push_back(next);
    last = next;
  }
  evict_all(driver);
  driver.read(*last);
  CHECK_EQUAL(driver.replays, 100000u);
  for (Tensor* tensor : held) driver.let_go(*tensor);
  driver.let_go(*last);
  driver.check_empty();
}

// --- everything ------------------------------------------------------------------------------------------------------------

TEST(compaction_packs_what_stays_at_the_low_end) {
  FakeDriver driver(small(200));
  std::vector<Tensor*> sources, made;
  for (int i = 0; i < 4; ++i) {
    sources.push_back(driver.source(10));
    made.push_back(one(driver, {sources.back()}, 20));
  }
  Tensor* exposed = driver.source(10);
  Tensor* behind = driver.source(10);
  driver.pin(*made[2]);
  driver.expose(*exposed);
  CHECK_EQUAL(exposed->offset, 120u);
  driver.engine().compact();
  CHECK_EQUAL(exposed->offset, 120u);
  CHECK_EQUAL(behind->offset, 130u);  // nothing is carried across it
  CHECK_EQUAL(sources[0]->offset, 0u);
  CHECK_EQUAL(sources[1]->offset, 10u);
  CHECK_EQUAL(sources[2]->offset, 20u);
  CHECK_EQUAL(made[2]->offset, 30u);
  CHECK_EQUAL(sources[3]->offset, 50u);
  CHECK(evicted(made[0]) && evicted(made[1]) && !evicted(made[2]) && evicted(made[3]));
  for (Tensor& tensor : driver.tensors()) driver.read(tensor);
  finish(driver);
}

TEST(packing_closes_the_gaps_and_evicts_nothing) {
  FakeDriver driver(small(200));
  std::vector<Tensor*> made, gaps;
  Tensor* source = driver.source(10);
  for (int i = 0; i < 4; ++i) {
    gaps.push_back(driver.source(10));
    made.push_back(one(driver, {source}, 20));
  }
  driver.pin(*made[1]);
  Tensor* exposed = driver.source(10);
  driver.expose(*exposed);
  const Bytes wall = exposed->offset;
  for (Tensor* gap : gaps) driver.let_go(*gap);
  driver.engine().pack();
  CHECK_EQUAL(driver.engine().stats().evictions, 0u);
  CHECK_EQUAL(exposed->offset, wall);
  for (int i = 0; i < 4; ++i) CHECK_EQUAL(made[static_cast<std::size_t>(i)]->offset, 10u + 20u * static_cast<Bytes>(i));
  for (Tensor& tensor : driver.tensors()) driver.read(tensor);
  finish(driver);
}

// Left and right of the last op each have to be recomputed from the source over a large
// intermediate. Whichever is resident must be able to leave while the other comes back: together
// with it, the intermediate does not fit.
TEST(operands_are_brought_back_one_after_the_other_and_those_that_take_the_most_room_first) {
  Options options = small(100);
  FakeDriver driver(options);
  Tensor* source = driver.source(10);
  Tensor* wide = one(driver, {source}, 50);
  Tensor* left = one(driver, {wide}, 30);
  driver.let_go(*wide);
  Tensor* right = one(driver, {source}, 30);
  evict_all(driver);
  driver.read(*right);  // resident, and in the way: 10 + 30 + 50 + 30 > 100
  Tensor* both = one(driver, {left, right}, 10);
  driver.read(*both);
  CHECK(!evicted(both));
  finish(driver);
}

TEST(what_waiting_ops_will_read_leaves_only_when_nothing_else_can) {
  FakeDriver driver(small(130));
  Tensor* source = driver.source(10);
  Tensor* shared = one(driver, {source}, 20, 100);  // dear: and read by both ops of the chain
  Tensor* first = one(driver, {shared}, 20, 1);
  Tensor* second = one(driver, {first, shared}, 20, 1);
  driver.let_go(*shared);
  driver.let_go(*first);
  evict_all(driver);
  Tensor* other = one(driver, {source}, 60, 1000);
  const auto before = driver.replays;
  driver.read(*second);  // 10 + 60 + 3 * 20 = 130: `other` need not leave, and `shared` is computed once
  CHECK_EQUAL(driver.replays - before, 3u);
  CHECK(!evicted(other));
  finish(driver);
}

TEST(retiring_moves_everything_held_out_of_the_arena_with_its_bytes) {
  FakeDriver driver(small(100));
  Tensor* source = driver.source(10);
  Tensor* outside = driver.foreign(10);
  std::vector<Tensor*> chain{one(driver, {source, outside}, 30)};
  for (int i = 0; i < 5; ++i) chain.push_back(one(driver, {chain.back()}, 30));
  driver.let_go(*chain[2]);
  driver.pin(*chain[5]);
  Tensor* exposed = driver.source(5);
  driver.expose(*exposed);
  driver.pin(*exposed);
  CHECK_EQUAL(driver.retire(), 0u);
  for (Tensor& tensor : driver.tensors()) {
    CHECK_EQUAL(tensor.state == Tensor::State::attached, &tensor == exposed);
    driver.read(tensor);
  }
  CHECK_EQUAL(driver.recipes(), 0u);
  CHECK_EQUAL(driver.engine().stats().storages, 1u);
  CHECK(!driver.engine().empty());
  driver.let_go(*exposed);  // the last one
  CHECK(driver.engine().empty());
  finish(driver);
}

TEST(retiring_gives_up_only_what_cannot_be_recomputed) {
  FakeDriver driver(small(2000));
  Tensor* source = driver.source(10);
  Tensor* fine = one(driver, {source}, 30);
  std::vector<Tensor*> lost;
  for (int i = 0; i < 16; ++i) {  // in whatever order it tries them
    lost.push_back(one(driver, {source}, 30));
    static_cast<fake::Recipe*>(lost.back()->storage->producer->recipe)->failures = 1000;
    lost.push_back(one(driver, {lost.back()}, 30));
    lost.push_back(one(driver, {lost.back(), fine}, 30));
  }
  evict_all(driver);
  CHECK_EQUAL(driver.retire(), lost.size());
  for (Tensor* tensor : lost) CHECK_EQUAL(tensor->state, Tensor::State::abandoned);
  driver.read(*fine);
  driver.read(*source);
  finish(driver);
}

TEST(retiring_brings_back_first_what_others_were_made_from) {
  // Each third tensor fits only if the two it is made from have left the arena before.
  FakeDriver driver(small(100));
  Tensor* source = driver.source(10);
  for (int i = 0; i < 16; ++i) {
    Tensor* a = one(driver, {source}, 30);
    Tensor* b = one(driver, {source}, 30);
    one(driver, {a, b}, 30);
    evict_all(driver);
  }
  Tensor* exposed = driver.source(20);
  driver.expose(*exposed);
  CHECK_EQUAL(driver.retire(), 0u);
  CHECK_EQUAL(driver.replays, 48u);  // each once
  for (Tensor& tensor : driver.tensors()) driver.read(tensor);
  finish(driver);
}

TEST(retiring_still_brings_back_what_was_made_from_something_lost) {
  // The first try at a fails and a is given up; the next, on the way to b, works.
  FakeDriver driver(small(300));
  Tensor* source = driver.source(10);
  Tensor* a = one(driver, {source}, 30);
  Tensor* b = one(driver, {a}, 30);
  evict_all(driver);
  static_cast<fake::Recipe*>(a->storage->producer->recipe)->failures = 1;
  const std::size_t lost = driver.retire();
  CHECK_EQUAL(lost, 1u);
  CHECK_EQUAL((a->state == Tensor::State::abandoned) + (b->state == Tensor::State::abandoned), 1);
  for (Tensor* tensor : {a, b}) {
    if (tensor->state != Tensor::State::abandoned) driver.read(*tensor);
  }
  finish(driver);
}

TEST(retiring_uses_the_room_behind_the_arena_where_the_budget_does_not_suffice) {
  for (const bool spare : {false, true}) {
    const check::Context context("spare", spare);
    FakeDriver driver(small(100), spare ? 100 : 0);
    Tensor* source = driver.source(10);
    Tensor* a = one(driver, {source}, 40);
    Tensor* b = one(driver, {a}, 40);
    evict_all(driver);
    Tensor* exposed = driver.source(70);  // in the way for ever
    driver.expose(*exposed);
    CHECK_THROWS(Shortage, driver.read(*b));
    CHECK_EQUAL(driver.retire(), spare ? 0u : 2u);
    CHECK_EQUAL(driver.engine().arena().capacity(), spare ? 200u : 100u);
    for (Tensor* tensor : {a, b}) {
      if (spare) driver.read(*tensor);
    }
    driver.read(*exposed);
    finish(driver);
  }
}

TEST(a_source_nobody_holds_goes_when_what_was_made_from_it_is_resident_and_not_much_larger) {
  for (const bool large : {false, true}) {
    for (const bool away : {false, true}) {
      const check::Context a("large", large), b("away", away);
      FakeDriver driver(small(300));
      Tensor* source = driver.source(20);
      Tensor* made = one(driver, {source}, large ? 50 : 30);
      if (away) evict_all(driver);
      driver.let_go(*source);
      driver.engine().ran(0);
      const bool committed = !large && !away;
      CHECK_EQUAL(made->storage->source(), committed);
      CHECK_EQUAL(driver.engine().stats().storages, committed ? 1u : 2u);
      evict_all(driver);
      driver.read(*made);
      finish(driver);
    }
  }
}

TEST(retiring_ends_pins_whose_tensors_are_gone) {
  FakeDriver driver(small(300));
  Tensor* source = driver.source(10);
  Tensor* a = one(driver, {source}, 30);
  driver.pin(*a);
  driver.let_go(*a);
  CHECK_EQUAL(driver.retire(), 0u);
  CHECK(driver.engine().empty());
  finish(driver);
}

TEST(events_tell_of_everything_that_is_counted) {
  FakeDriver driver(small(100));
  driver.engine().watch(true);
  Tensor* source = driver.source(10);
  Tensor* low = one(driver, {source}, 40);
  Tensor* middle = driver.source(10);
  Tensor* high = one(driver, {source}, 40);
  push_out(driver, 80);
  for (Tensor* tensor : {high, low, middle}) driver.read(*tensor);
  driver.engine().commit(*low->storage);
  CHECK_THROWS(Shortage, driver.allocate(41));
  std::map<EventKind, std::uint64_t> seen;
  Seconds time = 0;
  for (const Event& event : driver.engine().take_events()) {
    ++seen[event.kind];
    CHECK(event.time >= time);
    time = event.time;
    CHECK_AT_MOST(event.offset + (event.kind == EventKind::shortage ? 0 : event.bytes), 100u);
    CHECK(std::string(name(event.kind)) != "?");
  }
  const Stats stats = driver.engine().stats();
  CHECK_EQUAL(seen[EventKind::evict], stats.evictions);  // all of them were held
  CHECK_EQUAL(seen[EventKind::restore], stats.rematerialisations);
  CHECK_EQUAL(seen[EventKind::move], stats.moves);
  CHECK_EQUAL(seen[EventKind::commit], stats.commits);
  CHECK_EQUAL(seen[EventKind::shortage], 1u);
  CHECK_EQUAL(seen[EventKind::place], stats.allocations);
  CHECK(stats.evictions > 0 && stats.moves > 0);
  CHECK(driver.engine().take_events().empty());
  finish(driver);
}

TEST(a_source_that_is_made_again_takes_the_place_of_the_old_one) {
  FakeDriver driver(small(200));
  Tensor* source = driver.source(40);
  Tensor* a = one(driver, {source}, 30);
  Tensor* b = one(driver, {source, a}, 30);
  evict_all(driver);
  source = driver.refill(*source);
  CHECK_EQUAL(driver.engine().stats().sources, 40u);
  CHECK_EQUAL(driver.engine().stats().storages, 3u);
  for (Tensor* tensor : {b, a}) driver.read(*tensor);
  evict_all(driver);
  driver.run({.target = source, .record = false});  // rule 5
  for (Tensor* tensor : {a, b, source}) driver.read(*tensor);
  finish(driver);
}

TEST(a_source_that_is_expected_back_is_no_orphan) {
  for (const bool expected : {false, true}) {
    FakeDriver driver(small(300));
    Tensor* source = driver.source(40);
    Tensor* made = one(driver, {source}, 10);  // small enough to be committed in its place
    Storage* storage = source->storage;
    driver.let_go(*source);
    driver.engine().expect_back(*storage, expected);
    for (int i = 0; i < 20; ++i) driver.let_go(*one(driver, {}, 10));
    CHECK_EQUAL(made->storage->source(), !expected);
    if (expected) driver.engine().expect_back(*storage, false);
    for (int i = 0; i < 20; ++i) driver.let_go(*one(driver, {}, 10));
    CHECK(made->storage->source());
    driver.read(*made);
    finish(driver);
  }
}

TEST(only_a_resident_source_that_nothing_has_read_replaces_another) {
  FakeDriver driver(small(300));
  Tensor* first = driver.source(40);
  Tensor* second = driver.source(40);
  Tensor* smaller = driver.source(30);
  Tensor* made = one(driver, {second}, 40);
  Tensor* other = one(driver, {first}, 40);
  CHECK_THROWS(std::logic_error, driver.engine().replace(*first->storage, *second->storage));
  CHECK_THROWS(std::logic_error, driver.engine().replace(*first->storage, *smaller->storage));
  CHECK_THROWS(std::logic_error, driver.engine().replace(*first->storage, *made->storage));
  driver.read(*other);
  finish(driver);
}

TEST(checks_of_the_rules_notice_damage) {
  static FakeDriver& driver = *new FakeDriver(small(100));  // damaged: never taken down
  Tensor* source = driver.source(10);
  Tensor* made = one(driver, {source}, 20);
  driver.engine().check();
  made->storage->held = false;
  CHECK_THROWS(std::logic_error, driver.engine().check());
  made->storage->held = true;
  evict_all(driver);
  made->storage->digest ^= 2;  // as if the replay brought other bytes
  CHECK_THROWS(std::logic_error, driver.read(*made));
}
