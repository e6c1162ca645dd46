// The engine's lock is open while a transfer is waited for: others allocate, and let go of what was
// chosen to leave.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "check.h"
#include "engine/engine.h"

using namespace coop;

namespace {

// A tier whose every transfer takes until another thread has done something with the engine.
class SlowTier final : public Driver {
 public:
  explicit SlowTier(const Options& options) : engine(options, *this) {}

  Seconds replay(Op&, Block*, Block**) override { throw std::logic_error("nothing can be run again here"); }
  void detach(Storage&) override {}
  void attach(Storage&) override {}
  Seconds copy(Bytes, Bytes, Bytes) override { return 0; }
  void drop(Op&) override {}
  void drop(Storage&) override {}
  bool evacuate(Storage&) override { return true; }
  void abandon(Storage&) override {}
  std::uint64_t digest(Bytes, Bytes) override { return 1; }
  std::uint32_t begin_out(Bytes, Bytes, Seconds) override { return ++last_ticket_; }
  std::uint32_t begin_in(std::uint32_t, Bytes, Bytes, Seconds) override { return ++last_ticket_; }
  void wait(std::uint32_t, Seconds) override {
    if (!meanwhile) return;
    const auto work = std::exchange(meanwhile, nullptr);
    auto done = std::async(std::launch::async, work);
    CHECK(done.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    done.get();
    ++waits;
  }
  Transfer finish(std::uint32_t, Seconds) override { return {true, 1, 1e-6, 1e-6}; }

  Storage* source(Bytes bytes) { return engine.bind(engine.allocate(bytes)->offset, bytes, this); }

  std::function<void()> meanwhile;
  int waits = 0;
  Engine engine;

 private:
  std::uint32_t last_ticket_ = 0;
};

Options swapping() {
  Options options;
  options.budget = 1000;
  options.alignment = 1;
  options.tiny = 0;
  options.swap = true;
  options.swap_least = 1;
  options.checks = 2;
  return options;
}

}  // namespace

TEST(others_allocate_while_a_transfer_is_waited_for) {
  SlowTier driver(swapping());
  Storage* first = driver.source(400);
  Storage* second = driver.source(400);
  Block* other = nullptr;
  driver.meanwhile = [&] { other = driver.engine.allocate(50); };
  Block* block = driver.engine.allocate(500);  // one of both has to leave, and to be written first
  CHECK_EQUAL(driver.waits, 1);
  CHECK(block && other && other->state == Block::State::raw);
  CHECK(first->absent() || second->absent());
  driver.engine.check();
  driver.engine.free(block->offset);
  driver.engine.free(other->offset);
  driver.engine.let_go(*first);
  driver.engine.let_go(*second);
  driver.engine.pack();
  CHECK(driver.engine.empty());
}

TEST(what_was_chosen_to_leave_may_die_while_it_is_written) {
  SlowTier driver(swapping());
  Storage* first = driver.source(400);
  Storage* second = driver.source(400);
  driver.meanwhile = [&] {
    driver.engine.let_go(*first);
    driver.engine.let_go(*second);
  };
  Block* block = driver.engine.allocate(900);
  CHECK_EQUAL(driver.waits, 1);
  CHECK_EQUAL(block->bytes, 900u);
  driver.engine.check();
  driver.engine.free(block->offset);
  CHECK(driver.engine.empty());
  CHECK_EQUAL(driver.engine.stats().storages, 0u);
}

TEST(an_operand_is_waited_for_while_others_let_go) {
  SlowTier driver(swapping());
  Storage* parameter = driver.source(400);
  Storage* rest = driver.source(500);
  driver.engine.compact();
  CHECK(parameter->absent() && rest->absent());
  driver.meanwhile = [&] { driver.engine.let_go(*rest); };
  driver.engine.enter(std::array{parameter});
  CHECK_EQUAL(driver.waits, 1);
  CHECK(parameter->resident());
  driver.engine.leave(std::array{parameter});
  driver.engine.let_go(*parameter);
  CHECK_EQUAL(driver.engine.stats().storages, 0u);
}
