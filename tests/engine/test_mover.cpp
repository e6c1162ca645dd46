// The mover: transfers on threads of their own, whoever waits, and what becomes of them where there
// are no threads. The file is long because all tests use one tier that holds transfers up.
//
// Meant to be run under the thread sanitizer too: make sanitize-threads.
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>

#include "check.h"
#include "tiers/host_tier.h"
#include "tiers/mover.h"
#include "tiers/page_file.h"
#include "workers.h"

using namespace coop;

namespace {

using Values = std::vector<unsigned char>;
using namespace std::chrono_literals;

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; !condition(); ++i) {
    CHECK(i < 15'000);
    std::this_thread::sleep_for(1ms);
  }
}

// A tier that holds transfers of `held` bytes up until it is opened, and remembers all of them.
// Without a lock: a forked process finds it as it was.
class Gate final : public Tier {
 public:
  static constexpr Bytes held = 1000;
  struct Seen {
    Bytes bytes = 0;  // of a page that was written, or the page that was read
    bool out = false;
    std::thread::id by = {};
  };

  std::uint32_t write(const void*, Bytes bytes) override {
    const int number = note({bytes, true, std::this_thread::get_id()});
    if (bytes == held) await();
    if (bytes == 13) throw std::bad_alloc();
    ++done;
    return static_cast<std::uint32_t>(number);
  }
  bool read(std::uint32_t page, void*) override {
    note({page, false, std::this_thread::get_id()});
    if (page == held) await();
    ++done;
    return page != 13;
  }
  void drop(std::uint32_t) override {}

  void open() { open_ = true; }
  int begun() const { return begun_; }
  // After all of them are done.
  const Seen& seen(int i) const { return seen_[static_cast<std::size_t>(i)]; }

  std::atomic<int> done{0};

 private:
  int note(Seen seen) {
    const int number = begun_++;
    seen_[static_cast<std::size_t>(number)] = seen;
    return number + 1;
  }
  void await() {  // not for ever: a test that has failed does not open it
    for (int i = 0; i < 20'000 && !open_; ++i) std::this_thread::sleep_for(1ms);
  }
  std::atomic<bool> open_{false};
  std::atomic<int> begun_{0};
  std::array<Seen, 100> seen_;
};

unsigned char nowhere[Gate::held];  // bytes that no gate looks at

// As the engine does: the wait with its lock open, then what became of it.
Transfer wait_and_finish(Mover& mover, std::uint32_t ticket) {
  mover.wait(ticket);
  return mover.finish(ticket);
}

// Without waiting for it: the worker does it.
Transfer poll(Mover& mover, std::uint32_t ticket) {
  Transfer result;
  wait_until([&] { return (result = mover.finish(ticket)).done; });
  return result;
}

template <typename Checks>
void for_every_tier(Checks checks) {
  {
    const check::Context context("tier", "memory");
    HostTier tier(0);
    checks(tier);
  }
  {
    const check::Context context("tier", "file");
    PageFile tier(std::filesystem::temp_directory_path().string());
    checks(tier);
  }
}

}  // namespace

TEST(transfers_of_one_direction_are_done_in_the_order_in_which_they_were_begun) {
  for (const bool out : {true, false}) {
    Gate gate;
    Mover mover(gate);
    std::vector<std::uint32_t> tickets;
    constexpr unsigned kTransfers = 10;
    for (unsigned i = 0; i <= kTransfers; ++i) {
      const unsigned which = i ? i : Gate::held;  // the first one holds the others up
      tickets.push_back(out ? mover.begin_out(nowhere, which) : mover.begin_in(which, nowhere, 1));
    }
    gate.open();
    for (std::size_t i = tickets.size(); i-- > 0;) CHECK(poll(mover, tickets[i]).page != 0);
    CHECK_EQUAL(gate.begun(), kTransfers + 1);
    for (unsigned i = 1; i <= kTransfers; ++i) CHECK_EQUAL(gate.seen(static_cast<int>(i)).bytes, i);
  }
}

TEST(tickets_differ_and_each_transfer_tells_its_own_page) {
  Gate gate;
  Mover mover(gate);
  const std::uint32_t in = mover.begin_in(77, nowhere, 1);
  wait_until([&] { return gate.done == 1; });
  const std::uint32_t a = mover.begin_out(nowhere, 1), b = mover.begin_out(nowhere, 2);
  CHECK(a && b && in && a != b && b != in && a != in);
  CHECK_EQUAL(poll(mover, b).page, 3u);  // the third that the gate has seen
  CHECK_EQUAL(poll(mover, a).page, 2u);
  CHECK_EQUAL(poll(mover, in).page, 77u);
}

TEST(what_comes_back_does_not_queue_behind_what_leaves) {
  Gate gate;
  Mover mover(gate);
  const std::uint32_t out = mover.begin_out(nowhere, Gate::held), in = mover.begin_in(5, nowhere, 1);
  CHECK_EQUAL(poll(mover, in).page, 5u);
  CHECK(!mover.finish(out).done);
  gate.open();
  CHECK(poll(mover, out).done);
}

TEST(who_does_not_wait_is_told_when_it_is_done_and_once) {
  Gate gate;
  Mover mover(gate);
  const std::uint32_t ticket = mover.begin_out(nowhere, Gate::held);
  for (int i = 0; i < 3; ++i) CHECK(!mover.finish(ticket).done);
  wait_until([&] { return gate.begun() == 1; });
  CHECK(!mover.finish(ticket).done);
  gate.open();
  const Transfer transfer = poll(mover, ticket);
  CHECK_EQUAL(transfer.page, 1u);
  CHECK(transfer.seconds > 0);
  CHECK_EQUAL(transfer.waited, 0.0);
  CHECK(!mover.finish(ticket).done);
}

TEST(who_waits_for_what_has_begun_waits_until_it_is_done_and_is_told_how_long) {
  Gate gate;
  Mover mover(gate);
  const std::uint32_t ticket = mover.begin_out(nowhere, Gate::held);
  wait_until([&] { return gate.begun() == 1; });
  check::Workers opener;
  opener.run([&] {
    std::this_thread::sleep_for(20ms);
    gate.open();
  });
  const Transfer transfer = wait_and_finish(mover, ticket);
  CHECK(transfer.done && gate.done == 1);
  CHECK_EQUAL(transfer.page, 1u);
  CHECK(gate.seen(0).by != std::this_thread::get_id());
  CHECK(transfer.waited > 0);
  CHECK_AT_MOST(transfer.waited, transfer.seconds + 1);  // seconds, not another unit
  opener.finish();
  CHECK(!mover.finish(ticket).done);
}

TEST(who_waits_for_what_is_done_has_not_waited) {
  Gate gate;
  Mover mover(gate);
  const std::uint32_t first = mover.begin_out(nowhere, 1), second = mover.begin_out(nowhere, 2);
  CHECK(poll(mover, second).done);  // so the first is done as well
  const Transfer transfer = wait_and_finish(mover, first);
  CHECK(transfer.done);
  CHECK_EQUAL(transfer.waited, 0.0);
  CHECK_EQUAL(gate.begun(), 2);
}

TEST(who_waits_for_what_has_not_begun_does_it_himself) {
  for (const bool out : {true, false}) {
    Gate gate;
    Mover mover(gate);
    std::vector<std::uint32_t> tickets;
    for (const unsigned which : {static_cast<unsigned>(Gate::held), 1u, 2u, 3u}) {
      tickets.push_back(out ? mover.begin_out(nowhere, which) : mover.begin_in(which, nowhere, 1));
    }
    wait_until([&] { return gate.begun() == 1; });
    const Transfer own = wait_and_finish(mover, tickets[2]);
    CHECK(own.done && own.page != 0 && own.waited > 0);
    CHECK_EQUAL(gate.begun(), 2);
    CHECK_EQUAL(gate.seen(1).bytes, 2u);
    CHECK(gate.seen(1).by == std::this_thread::get_id());
    for (const std::size_t other : {0, 1, 3}) CHECK(!mover.finish(tickets[other]).done);
    gate.open();
    for (const std::size_t other : {0, 1, 3}) CHECK(poll(mover, tickets[other]).done);
    CHECK_EQUAL(gate.begun(), 4);  // and nobody has done it again
    for (const int other : {0, 2, 3}) CHECK(gate.seen(other).by != std::this_thread::get_id());
    CHECK_EQUAL(gate.seen(2).bytes, 1u);
    CHECK_EQUAL(gate.seen(3).bytes, 3u);
  }
}

TEST(what_is_called_off_before_it_began_is_never_done) {
  for (const bool out : {true, false}) {
    Gate gate;
    Mover mover(gate);
    std::vector<std::uint32_t> tickets;
    for (const unsigned which : {static_cast<unsigned>(Gate::held), 1u, 2u, 3u}) {
      tickets.push_back(out ? mover.begin_out(nowhere, which) : mover.begin_in(which, nowhere, 1));
    }
    wait_until([&] { return gate.begun() == 1; });
    CHECK(mover.cancel(tickets[1]));
    CHECK(mover.cancel(tickets[3]));
    CHECK(!mover.finish(tickets[1]).done);
    gate.open();
    CHECK(poll(mover, tickets[2]).done);
    CHECK(poll(mover, tickets[0]).done);
    const std::uint32_t later = out ? mover.begin_out(nowhere, 4) : mover.begin_in(4, nowhere, 1);
    CHECK(poll(mover, later).done);  // it is behind all of them
    CHECK_EQUAL(gate.begun(), 3);
    CHECK_EQUAL(gate.seen(1).bytes, 2u);
    CHECK_EQUAL(gate.seen(2).bytes, 4u);
  }
}

TEST(what_has_begun_or_is_done_cannot_be_called_off) {
  Gate gate;
  Mover mover(gate);
  const std::uint32_t running = mover.begin_out(nowhere, Gate::held);
  wait_until([&] { return gate.begun() == 1; });
  CHECK(!mover.cancel(running));
  gate.open();
  const std::uint32_t second = mover.begin_out(nowhere, 1), third = mover.begin_out(nowhere, 2);
  CHECK(poll(mover, third).done);
  CHECK(!mover.cancel(second));
  CHECK_EQUAL(mover.finish(running).page, 1u);  // both are still to be had
  CHECK_EQUAL(mover.finish(second).page, 2u);
}

TEST(a_tier_that_refuses_or_has_no_memory_gives_no_page) {
  Gate gate;
  Mover mover(gate);
  const std::uint32_t out = mover.begin_out(nowhere, 13), in = mover.begin_in(13, nowhere, 1);
  const Transfer refused = poll(mover, out), wrong = poll(mover, in);
  CHECK(refused.done && wrong.done);
  CHECK_EQUAL(refused.page, 0u);
  CHECK_EQUAL(wrong.page, 0u);
  const std::uint32_t first = mover.begin_out(nowhere, Gate::held), own = mover.begin_out(nowhere, 13);
  wait_until([&] { return gate.begun() == 3; });
  CHECK_EQUAL(wait_and_finish(mover, own).page, 0u);  // on this thread
  gate.open();
  CHECK(poll(mover, first).page != 0);
}

TEST(a_mover_that_ends_finishes_what_has_begun_and_leaves_the_rest) {
  int left = 0;
  for (int tries = 0; tries < 20 && left == 0; ++tries) {  // the gate might be open too early
    Gate gate;
    check::Workers opener;
    {
      Mover mover(gate);
      for (const Bytes bytes : {Gate::held, Bytes{1}, Bytes{2}}) mover.begin_out(nowhere, bytes);
      for (const unsigned page : {static_cast<unsigned>(Gate::held), 1u, 2u}) mover.begin_in(page, nowhere, 1);
      wait_until([&] { return gate.begun() == 2; });
      opener.run([&] {
        std::this_thread::sleep_for(50ms);
        gate.open();
      });
    }
    CHECK_EQUAL(gate.done.load(), gate.begun());
    CHECK(gate.begun() >= 2);
    left = 6 - gate.begun();
    opener.finish();
  }
  CHECK_EQUAL(left, 4);
}

TEST(a_mover_without_work_ends) {
  Gate gate;
  {
    const Mover mover(gate);
  }
  Mover mover(gate);
  CHECK(poll(mover, mover.begin_out(nowhere, 1)).done);  // its worker waits for more
}

TEST(many_threads_transfer_at_once_and_each_gets_its_own_bytes) {
  for_every_tier([](Tier& tier) {
    Mover mover(tier);
    std::atomic<int> called_off{0}, compared{0};
    check::in_threads(4, [&](int thread) {
      check::Random random(static_cast<std::uint64_t>(thread) + 1);
      const auto end = [&](std::uint32_t ticket) {
        if (random.chance(50)) return wait_and_finish(mover, ticket);
        return poll(mover, ticket);
      };
      for (int i = 0; i < 60; ++i) {
        std::array<Values, 4> values;
        std::array<std::uint32_t, 4> tickets{}, pages{};
        for (std::size_t k = 0; k < values.size(); ++k) {
          values[k].resize(std::array<Bytes, 3>{64, 700, 20'000}[random.below(3)]);
          for (unsigned char& value : values[k]) value = static_cast<unsigned char>(random.below(256));
          tickets[k] = mover.begin_out(values[k].data(), values[k].size());
        }
        for (std::size_t k = values.size(); k-- > 0;) {
          if (random.chance(20) && mover.cancel(tickets[k])) {
            ++called_off;
            std::fill(values[k].begin(), values[k].end(), 0);  // nobody reads it any more
            tickets[k] = 0;
            continue;
          }
          pages[k] = end(tickets[k]).page;
          CHECK(pages[k] != 0);
        }
        std::array<Values, 4> back;
        for (std::size_t k = 0; k < values.size(); ++k) {
          back[k].resize(values[k].size());
          if (pages[k]) tickets[k] = mover.begin_in(pages[k], back[k].data(), back[k].size());
        }
        for (std::size_t k = 0; k < values.size(); ++k) {
          if (!pages[k]) continue;
          CHECK_EQUAL(end(tickets[k]).page, pages[k]);
          CHECK(back[k] == values[k]);
          tier.drop(pages[k]);
          ++compared;
        }
      }
    });
    CHECK_EQUAL(compared + called_off, 4 * 60 * 4);
    CHECK(compared > 0);
  });
}

// --- other processes ---------------------------------------------------------------------------------------------------

TEST(a_forked_process_is_alone_and_does_all_transfers_itself) {
  for_every_tier([](Tier& tier) {
    const Values before(3000, 1), fresh(2000, 2);
    auto mover = std::make_unique<Mover>(tier);
    const std::uint32_t page = poll(*mover, mover->begin_out(before.data(), before.size())).page;
    CHECK(!mover->alone());
    check::Child child([&] {
      CHECK(mover->alone());
      Values found(3000);
      std::uint32_t ticket = mover->begin_in(page, found.data(), found.size());
      CHECK(!mover->finish(ticket).done);
      CHECK(!mover->cancel(ticket));
      CHECK_EQUAL(wait_and_finish(*mover, ticket).page, page);
      CHECK(found == before);
      CHECK(!mover->finish(ticket).done);
      ticket = mover->begin_out(fresh.data(), fresh.size());
      const std::uint32_t own = wait_and_finish(*mover, ticket).page;
      if (!own) return;  // a file belongs to the process that opened it
      found.resize(2000);
      CHECK_EQUAL(wait_and_finish(*mover, mover->begin_in(own, found.data(), found.size())).page, own);
      CHECK(found == fresh);
    });
    child.finish();
    Values found(3000);
    CHECK_EQUAL(poll(*mover, mover->begin_in(page, found.data(), found.size())).page, page);
    CHECK(found == before);
  });
}

TEST(what_was_under_way_when_the_process_was_forked_is_done_on_both_sides) {
  Gate gate;
  Mover mover(gate);
  const std::uint32_t running = mover.begin_out(nowhere, Gate::held), waiting = mover.begin_out(nowhere, 1);
  const std::uint32_t done = mover.begin_in(7, nowhere, 1);
  wait_until([&] { return gate.done == 1 && gate.begun() == 2; });
  const std::uint32_t last = mover.begin_in(8, nowhere, 1);
  wait_until([&] { return gate.done == 2; });
  CHECK_EQUAL(poll(mover, last).page, 8u);  // so the one before is done, and the worker sleeps
  check::Child child([&] {
    gate.open();
    CHECK_EQUAL(mover.finish(done).page, 7u);
    CHECK(!mover.finish(running).done && !mover.finish(waiting).done);
    CHECK(wait_and_finish(mover, waiting).page != 0);
    CHECK(wait_and_finish(mover, running).page != 0);
    CHECK_EQUAL(gate.begun(), 5);
    CHECK(gate.seen(4).by == std::this_thread::get_id());
  });
  child.finish();
  CHECK_EQUAL(gate.begun(), 3);
  gate.open();
  CHECK(poll(mover, waiting).done && poll(mover, running).done);
  CHECK_EQUAL(wait_and_finish(mover, done).page, 7u);
  CHECK_EQUAL(gate.begun(), 4);
}

TEST(where_no_thread_can_be_started_whoever_waits_does_it) {
  check::Child child([] {
    // Root may start as many as it likes.
    const rlimit none{0, 0};
    CHECK_EQUAL(setrlimit(RLIMIT_NPROC, &none), 0);
    if (getuid() == 0) CHECK_EQUAL(setuid(65534), 0);
    bool refused = false;
    try {
      std::thread([] {}).join();
    } catch (const std::system_error&) {
      refused = true;
    }
    CHECK(refused);
    HostTier tier(0);
    Mover mover(tier);
    const Values values(3000, 1);
    Values found(3000);
    const std::uint32_t other = mover.begin_out(values.data(), 100);
    const std::uint32_t page = wait_and_finish(mover, mover.begin_out(values.data(), values.size())).page;
    CHECK(page != 0);
    const std::uint32_t in = mover.begin_in(page, found.data(), found.size());
    std::this_thread::sleep_for(5ms);
    CHECK(!mover.finish(in).done);
    CHECK_EQUAL(wait_and_finish(mover, in).page, page);
    CHECK(found == values);
    CHECK(mover.cancel(other));
  });
  child.finish();
}
