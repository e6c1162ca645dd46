// Tiers keep what they are given. First what holds for each of them, then what a file or memory
// promises alone. The file is long because each kind of failure of a disk has a test.
//
// Meant to be run under the thread sanitizer too: make sanitize-threads.
#include <fcntl.h>
#include <sys/resource.h>

#include <array>
#include <barrier>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "check.h"
#include "tiers/host_tier.h"
#include "tiers/page_file.h"
#include "workers.h"

using namespace coop;
namespace files = std::filesystem;

namespace {

using Values = std::vector<unsigned char>;

std::string folder() { return files::temp_directory_path().string(); }

// Checks of both tiers: `make(limit)` makes one.
template <typename Checks>
void for_every_tier(Checks checks) {
  {
    const check::Context context("tier", "memory");
    checks([](Bytes limit) { return std::make_unique<HostTier>(limit); });
  }
  {
    const check::Context context("tier", "file");
    checks([](Bytes limit) { return std::make_unique<PageFile>(folder(), limit); });
  }
}

Values some(check::Random& random, Bytes bytes) {
  Values values(bytes);
  for (unsigned char& value : values) value = static_cast<unsigned char>(random.below(256));
  return values;
}

// Sizes around those that the copies treat in a special way, and any.
Bytes some_size(check::Random& random) {
  constexpr Bytes kLine = 64;
  if (random.chance(10)) return random.between(1, 16);
  if (random.chance(50)) return kLine * random.between(1, 8) + random.between(0, 2) - 1;
  return random.between(1, random.chance(10) ? 100'000 : 3000);
}

std::uint32_t write(Tier& tier, const Values& values) { return tier.write(values.data(), values.size()); }

void check_read(Tier& tier, std::uint32_t slot, const Values& expected) {
  Values found(expected.size(), 0xEE);
  CHECK(tier.read(slot, found.data()));
  CHECK(found == expected);
}

// The file that pages are in: it has no name, but this process has it open.
int find_page_file() {
  for (const auto& entry : files::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = files::read_symlink(entry.path(), gone).string();
    if (target.find("/coop-pages-") != std::string::npos) return std::stoi(entry.path().filename());
  }
  check::fail(__FILE__, __LINE__, "no page file is open");
}

// As if the disk were full: no file of this process grows beyond so many bytes.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    rlimit now = before_;
    now.rlim_cur = bytes;
    CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_ = {};
  void (*handler_)(int) = nullptr;
};

// One process tells another that it is so far.
class Signal {
 public:
  Signal() { CHECK_EQUAL(pipe(ends_), 0); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  void give() { CHECK_EQUAL(::write(ends_[1], "x", 1), 1); }
  void await() {
    char byte = 0;
    CHECK_EQUAL(::read(ends_[0], &byte, 1), 1);
  }

 private:
  int ends_[2] = {};
};

}  // namespace

// --- every tier --------------------------------------------------------------------------------------------------------

TEST(bytes_come_back_as_they_left_and_as_often_as_they_are_asked_for) {
  for_every_tier([](auto make) {
    const auto tier = make(0);
    check::Random random(1);
    std::map<std::uint32_t, Values> kept;
    for (int i = 0; i < 2000; ++i) {
      const check::Context step("step", i);
      if (kept.size() < 20 || random.chance(40)) {
        const Bytes shift = random.below(20), bytes = some_size(random);  // at any alignment
        const Values values = some(random, shift + bytes);
        const std::uint32_t slot = tier->write(values.data() + shift, bytes);
        CHECK(slot != 0);
        CHECK(kept.emplace(slot, Values(values.begin() + static_cast<std::ptrdiff_t>(shift), values.end())).second);
      } else {
        const auto at = std::next(kept.begin(), static_cast<std::ptrdiff_t>(random.below(kept.size())));
        const auto& [slot, expected] = *at;
        constexpr Bytes kAround = 64;
        const Bytes shift = random.below(20);
        Values found(kAround + shift + expected.size() + kAround, 0xEE), wanted = found;
        std::copy(expected.begin(), expected.end(), wanted.begin() + static_cast<std::ptrdiff_t>(kAround + shift));
        CHECK(tier->read(slot, found.data() + kAround + shift));
        CHECK(found == wanted);  // and nothing around it was touched
        if (random.chance(60)) {
          tier->drop(slot);
          kept.erase(at);
        }
      }
    }
    for (const auto& [slot, expected] : kept) check_read(*tier, slot, expected);
  });
}

TEST(a_slot_is_used_again_once_it_was_dropped_and_not_before) {
  for_every_tier([](auto make) {
    const auto tier = make(0);
    const Values a(700, 1), b(700, 2), c(700, 3), d(500, 4);
    const std::uint32_t first = write(*tier, a), second = write(*tier, b);
    CHECK(first && second && first != second);
    tier->drop(first);
    const std::uint32_t other = write(*tier, d);  // of another size
    const std::uint32_t again = write(*tier, c);
    CHECK_EQUAL(again, first);
    check_read(*tier, second, b);
    check_read(*tier, again, c);
    check_read(*tier, other, d);
  });
}

TEST(nothing_is_not_a_page_and_takes_no_room) {
  for_every_tier([](auto make) {
    const auto tier = make(10);
    const Values values(10, 7);
    for (int i = 0; i < 5; ++i) CHECK_EQUAL(tier->write(values.data(), 0), 0u);
    const std::uint32_t slot = write(*tier, values);
    CHECK(slot != 0);
    CHECK_EQUAL(tier->write(values.data(), 0), 0u);
    check_read(*tier, slot, values);
  });
}

TEST(what_goes_beyond_the_limit_is_refused_and_a_drop_makes_room_again) {
  for_every_tier([](auto make) {
    const auto tier = make(1000);
    const Values a(600, 1), b(400, 2), one(1, 3);
    const std::uint32_t first = write(*tier, a), second = write(*tier, b);  // to the last byte
    CHECK(first && second);
    for (int i = 0; i < 3; ++i) {
      CHECK_EQUAL(write(*tier, one), 0u);
      CHECK_EQUAL(write(*tier, a), 0u);
    }
    tier->drop(first);
    const std::uint32_t again = write(*tier, a);
    CHECK(again != 0);
    CHECK_EQUAL(write(*tier, a), 0u);
    check_read(*tier, again, a);
    check_read(*tier, second, b);
  });
}

TEST(a_page_larger_than_the_limit_is_refused_and_others_are_not) {
  for_every_tier([](auto make) {
    const auto tier = make(1000);
    CHECK_EQUAL(write(*tier, Values(1001)), 0u);
    const Values all(1000, 5);
    const std::uint32_t slot = write(*tier, all);
    CHECK(slot != 0);
    check_read(*tier, slot, all);
  });
}

TEST(writers_on_several_threads_do_not_disturb_each_other) {
  for_every_tier([](auto make) {
    const auto tier = make(0);
    check::in_threads(4, [&](int thread) {
      check::Random random(static_cast<std::uint64_t>(thread) + 1);
      std::map<std::uint32_t, Values> kept;
      for (int i = 0; i < 200; ++i) {
        // Few sizes: what one thread drops, another takes.
        const Values values = some(random, std::array<Bytes, 4>{1, 300, 1024, 5000}[random.below(4)]);
        const std::uint32_t slot = write(*tier, values);
        CHECK(slot != 0);
        CHECK(kept.emplace(slot, values).second);
        while (kept.size() > 5) {
          const auto at = std::next(kept.begin(), static_cast<std::ptrdiff_t>(random.below(kept.size())));
          check_read(*tier, at->first, at->second);
          tier->drop(at->first);
          kept.erase(at);
        }
      }
      for (const auto& [slot, values] : kept) check_read(*tier, slot, values);
    });
  });
}

TEST(the_limit_holds_for_all_threads_together) {
  for_every_tier([](auto make) {
    constexpr Bytes kSize = 1000;
    constexpr int kThreads = 4, kRounds = 50, kFit = 3;
    const auto tier = make(kFit * kSize + kSize / 2);
    std::barrier all(kThreads);
    std::atomic<int> inside[kRounds] = {}, wrong = 0;
    check::in_threads(kThreads, [&](int thread) {
      const Values values(kSize, static_cast<unsigned char>(thread + 1));
      for (std::atomic<int>& fit : inside) {  // no check in here: the others would wait for ever
        const std::uint32_t slots[] = {write(*tier, values), write(*tier, values)};
        all.arrive_and_wait();
        for (const std::uint32_t slot : slots) {
          if (!slot) continue;
          ++fit;
          Values found(kSize);
          if (!tier->read(slot, found.data()) || found != values) ++wrong;
          tier->drop(slot);
        }
        all.arrive_and_wait();
      }
    });
    CHECK_EQUAL(wrong.load(), 0);
    for (const std::atomic<int>& fit : inside) CHECK_EQUAL(fit.load(), kFit);
  });
}

TEST(what_one_thread_wrote_another_reads_and_drops) {
  for_every_tier([](auto make) {
    const auto tier = make(0);
    constexpr int kPages = 500;
    std::mutex mutex;
    std::condition_variable more;
    std::map<std::uint32_t, Values> written;
    int read = 0;
    check::in_threads(2, [&](int thread) {
      check::Random random(3);
      for (int i = 0; i < kPages; ++i) {
        if (thread == 0) {
          const Values values = some(random, random.between(1, 4) * 256);
          const std::uint32_t slot = write(*tier, values);
          const std::lock_guard<std::mutex> lock(mutex);
          written[slot] = values;
          more.notify_one();
        } else {
          std::unique_lock<std::mutex> lock(mutex);
          CHECK(more.wait_for(lock, std::chrono::seconds(60), [&] { return !written.empty(); }));
          const auto page = written.extract(written.begin());
          lock.unlock();
          check_read(*tier, page.key(), page.mapped());
          tier->drop(page.key());
          ++read;
        }
      }
    });
    CHECK_EQUAL(read, kPages);
  });
}

TEST(what_was_written_before_a_fork_is_read_on_both_sides) {
  for_every_tier([](auto make) {
    const auto tier = make(0);
    check::Random random(5);
    const Values a = some(random, 5000), b = some(random, 64);
    const std::uint32_t first = write(*tier, a), second = write(*tier, b);
    check::Child child([&] {
      check_read(*tier, first, a);
      check_read(*tier, second, b);
      tier->drop(first);
      const std::uint32_t slot = write(*tier, Values(5000, 9));  // memory is its own; a file is not
      if (slot) check_read(*tier, slot, Values(5000, 9));
    });
    child.finish();
    check_read(*tier, first, a);
    check_read(*tier, second, b);
  });
}

// --- memory ------------------------------------------------------------------------------------------------------------

TEST(memory_of_slots_that_are_not_in_use_goes_to_other_sizes) {
  HostTier tier(1000);
  const Values large(1000, 1), half(500, 2), small(100, 3);
  std::uint32_t slot = write(tier, large);
  CHECK(slot != 0);
  CHECK_EQUAL(write(tier, small), 0u);
  tier.drop(slot);
  const std::uint32_t first = write(tier, half), second = write(tier, half);
  CHECK(first && second);
  CHECK_EQUAL(write(tier, small), 0u);
  tier.drop(first);
  std::vector<std::uint32_t> many;
  for (int i = 0; i < 5; ++i) {
    many.push_back(write(tier, small));
    CHECK(many.back() != 0);
  }
  CHECK_EQUAL(write(tier, small), 0u);
  check_read(tier, second, half);
  for (const std::uint32_t each : many) {
    check_read(tier, each, small);
    tier.drop(each);
  }
  tier.drop(second);
  slot = write(tier, large);
  CHECK(slot != 0);
  check_read(tier, slot, large);
}

// --- a file ------------------------------------------------------------------------------------------------------------

TEST(every_byte_of_a_page_that_changed_in_the_file_is_noticed) {
  PageFile file(folder());
  check::Random random(11);
  const Values before = some(random, 777), values = some(random, 1000);
  const std::uint32_t first = write(file, before), second = write(file, values);
  const int descriptor = find_page_file();
  Values found(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const check::Context context("byte", i);
    const auto at = static_cast<off_t>(before.size() + i);
    const auto wrong = static_cast<unsigned char>(values[i] ^ (1u << random.below(8)));
    CHECK_EQUAL(pwrite(descriptor, &wrong, 1, at), 1);
    CHECK(!file.read(second, found.data()));
    CHECK_EQUAL(found[i], wrong);  // this was the file, and the place
    CHECK_EQUAL(pwrite(descriptor, &values[i], 1, at), 1);
  }
  check_read(file, second, values);
  check_read(file, first, before);
}

TEST(a_page_that_is_cut_off_is_noticed) {
  PageFile file(folder());
  const Values values(1000, 1), other(500, 2);
  const std::uint32_t first = write(file, values), second = write(file, other);
  CHECK_EQUAL(ftruncate(find_page_file(), 1499), 0);
  Values found(500);
  CHECK(!file.read(second, found.data()));
  check_read(file, first, values);
  CHECK_EQUAL(ftruncate(find_page_file(), 0), 0);
  found.resize(1000);
  CHECK(!file.read(first, found.data()));
}

TEST(a_page_file_has_no_name_and_leaves_nothing_behind) {
  std::string path = folder() + "/coop-test-XXXXXX";
  CHECK(mkdtemp(path.data()) != nullptr);
  {
    PageFile file(path);
    CHECK(files::is_empty(path));
    const Values values(3000, 1);
    const std::uint32_t slot = write(file, values);
    CHECK(slot != 0);
    CHECK(files::read_symlink("/proc/self/fd/" + std::to_string(find_page_file())).string().starts_with(path));
    CHECK(files::is_empty(path));
    check_read(file, slot, values);
  }
  CHECK(files::remove(path));
}

TEST(without_its_folder_a_file_says_why_and_takes_no_page) {
  PageFile file(folder() + "/coop-no-such-folder");
  for (int i = 0; i < 3; ++i) {
    errno = 0;
    CHECK(!file.open());
    CHECK_EQUAL(errno, ENOENT);
    CHECK_EQUAL(write(file, Values(100)), 0u);
  }
}

TEST(on_a_full_disk_pages_are_refused_and_those_written_before_stay) {
  PageFile file(folder());
  check::Random random(13);
  const Values before = some(random, 3000), values = some(random, 3000), small = some(random, 500);
  const std::uint32_t first = write(file, before);
  std::uint32_t third = 0;
  CHECK(first != 0);
  {
    const FullDisk full(4096);
    for (int i = 0; i < 3; ++i) CHECK_EQUAL(write(file, values), 0u);  // a part of it was written
    third = write(file, small);                                        // as far as there is room
    CHECK(third != 0);
    CHECK_EQUAL(write(file, values), 0u);
    check_read(file, first, before);
    check_read(file, third, small);
  }
  const std::uint32_t second = write(file, values);
  CHECK(second != 0);
  check_read(file, first, before);
  check_read(file, second, values);
  check_read(file, third, small);
}

TEST(a_page_that_could_not_be_written_takes_no_room_of_the_limit) {
  PageFile file(folder(), 1000);
  {
    const FullDisk full(100);
    for (Bytes bytes = 200; bytes <= 900; bytes += 100) CHECK_EQUAL(write(file, Values(bytes)), 0u);
  }
  const Values values(1000, 1);
  const std::uint32_t slot = write(file, values);
  CHECK(slot != 0);
  check_read(file, slot, values);
}

TEST(a_forked_process_does_not_write_to_the_file_of_another) {
  PageFile file(folder());
  const Values mine(2000, 1), theirs(2000, 2);
  const std::uint32_t slot = write(file, mine);
  check::Child child([&] {
    CHECK_EQUAL(write(file, theirs), 0u);
    file.drop(slot);
    CHECK_EQUAL(write(file, theirs), 0u);
  });
  child.finish();
  check_read(file, slot, mine);
}

TEST(a_forked_process_notices_that_a_page_was_used_again_by_the_other) {
  PageFile file(folder());
  const Values old(2000, 1), fresh(2000, 2);
  const std::uint32_t slot = write(file, old);
  Signal begin, written;
  check::Child child([&] {
    check_read(file, slot, old);
    begin.give();
    written.await();
    Values found(2000);
    CHECK(!file.read(slot, found.data()));
  });
  begin.await();
  file.drop(slot);
  CHECK_EQUAL(write(file, fresh), slot);
  written.give();
  child.finish();
}

TEST(a_file_that_was_not_open_before_the_fork_is_a_processs_own) {
  PageFile file(folder());
  const Values mine(2000, 1), theirs(2000, 2);
  check::Child child([&] {
    const std::uint32_t slot = write(file, theirs);
    CHECK(slot != 0);
    check_read(file, slot, theirs);
  });
  const std::uint32_t slot = write(file, mine);
  child.finish();
  check_read(file, slot, mine);
}
