// Plans in force: any plan, however silly, breaks no rule; and the file that plans page to.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "check.h"
#include "fake_driver.h"
#include "tiers/page_file.h"

using namespace coop;
using fake::Call;
using fake::FakeDriver;
using fake::Tensor;

namespace {

// A step that is always the same: which tensors each op reads, by number, what it makes, and when
// they are let go.
struct Line {
  std::vector<std::size_t> inputs;
  std::vector<Bytes> outputs;
  std::optional<std::size_t> target;
  std::vector<std::size_t> let_go;
};

std::vector<Line> random_step(check::Random& random, std::size_t length) {
  std::vector<Line> lines;
  std::vector<std::size_t> alive{0, 1};  // sources
  std::size_t next = 2;
  for (std::size_t i = 0; i < length; ++i) {
    Line line;
    for (std::uint64_t k = random.between(1, 3); k; --k) {
      const std::size_t input = alive[random.below(alive.size())];
      if (std::find(line.inputs.begin(), line.inputs.end(), input) == line.inputs.end()) line.inputs.push_back(input);
    }
    if (alive.size() > 3 && random.chance(15)) {
      const std::size_t target = alive[random.between(2, alive.size() - 1)];
      std::erase(line.inputs, target);
      line.target = target;
    } else {
      for (std::uint64_t k = random.between(1, 2); k; --k) {
        line.outputs.push_back(64 * random.between(1, 8));
        alive.push_back(next++);
      }
    }
    while (alive.size() > 8 || (alive.size() > 3 && random.chance(10))) {
      const std::size_t which = random.between(2, alive.size() - 1);
      line.let_go.push_back(alive[which]);
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(which));
    }
    lines.push_back(line);
  }
  return lines;
}

// Where some sizes should go: free or not, in the arena or not.
std::vector<Planned::Place> random_room(check::Random& random) {
  std::vector<Planned::Place> room;
  while (random.chance(50))
    room.push_back({64 * random.between(1, 8), 64 * random.below(160), random.chance(50) ? -1 : 0});
  return room;
}

// What each op makes, by the numbers that a plan gives to values; and steps at random.
std::shared_ptr<Planned> random_plan(check::Random& random, const std::vector<Line>& lines) {
  auto plan = std::make_shared<Planned>();
  std::vector<std::uint32_t> value_of(1000, 0);
  std::vector<Bytes> bytes_of(1000, 0);
  std::uint32_t values = 0;
  std::size_t tensor = 2;
  for (const Line& line : lines) {
    std::vector<Planned::Output> outputs;
    if (line.target) {
      outputs.push_back({values, bytes_of[*line.target], value_of[*line.target]});
      value_of[*line.target] = values++;
    }
    for (const Bytes bytes : line.outputs) {
      outputs.push_back({values, bytes, -1});
      bytes_of[tensor] = bytes;
      value_of[tensor++] = values++;
    }
    plan->node("", false, outputs, random.chance(50) ? std::vector<Planned::Place>{} : random_room(random));
  }
  for (std::uint32_t node = 0; node <= lines.size(); ++node) {
    while (random.chance(60)) {
      const auto kind = static_cast<Planned::Kind>(random.below(4));
      const std::uint64_t limit =
          kind == Planned::Kind::compute ? std::min<std::size_t>(node + 1, lines.size()) : values;
      plan->step(kind, static_cast<std::uint32_t>(random.below(limit)), node, random_room(random));
    }
  }
  return plan;
}

void run_step(FakeDriver& driver, const std::vector<Line>& lines, std::vector<Tensor*>& tensors) {
  tensors.resize(2);
  for (const Line& line : lines) {
    Call call;
    for (const std::size_t input : line.inputs) call.inputs.push_back(tensors[input]);
    call.outputs = line.outputs;
    if (line.target) call.target = tensors[*line.target];
    for (Tensor* made : driver.run(call)) tensors.push_back(made);
    for (const std::size_t gone : line.let_go) driver.let_go(*std::exchange(tensors[gone], nullptr));
    driver.check_sums();
  }
  for (std::size_t i = 2; i < tensors.size(); ++i) {
    if (!tensors[i]) continue;
    driver.read(*tensors[i]);
    driver.let_go(*tensors[i]);
  }
}

}  // namespace

TEST(any_plan_breaks_no_rule) {
  std::uint64_t followed = 0, evictions = 0, pages = 0, lost = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const check::Context context("seed", seed);
    check::Random random(seed);
    const std::vector<Line> lines = random_step(random, random.between(5, 40));
    Options options;
    options.budget = 64 * random.between(70, 140);
    options.tiny = random.chance(50) ? 0 : 64;
    options.keep_dead = random.chance(70);
    options.checks = 2;
    FakeDriver driver(options);
    driver.page_trouble = random.chance(50) ? 0 : 3;
    std::vector<Tensor*> tensors{driver.source(256), driver.source(512)};
    driver.engine().follow(random_plan(random, lines));
    for (int step = 0; step < 3; ++step) {
      try {
        run_step(driver, lines, tensors);
      } catch (const Shortage&) {  // the budget is tight; what is alive then stays for the end
        for (std::size_t i = 2; i < tensors.size(); ++i) {
          if (tensors[i]) driver.let_go(*tensors[i]);
        }
      }
    }
    const Stats stats = driver.engine().stats();
    followed += stats.planned_steps;
    evictions += stats.evictions;
    pages += stats.swaps_in;
    lost += driver.pages_lost;
    driver.engine().follow(nullptr);
    for (std::size_t i = 0; i < 2; ++i) driver.let_go(*tensors[i]);
    driver.check_empty();
    CHECK_EQUAL(driver.pages(), 0u);
  }
  CHECK(followed > 300 && evictions > 1000 && pages > 100 && lost > 10);
}

TEST(another_op_loses_the_plan_and_the_first_op_finds_it_again) {
  check::Random random(1);
  Options options;
  options.budget = 1 << 16;
  options.tiny = 0;
  FakeDriver driver(options);
  Tensor* source = driver.source(64);
  auto plan = std::make_shared<Planned>();
  plan->node("", false, {{0, 128, -1}}, {});
  plan->node("", false, {{1, 256, -1}}, {});
  plan->step(Planned::Kind::free, 0, 2, {});
  driver.engine().follow(plan);
  const auto step = [&](Bytes second) {
    Tensor* first = driver.run({.inputs = {source}, .outputs = {128}})[0];
    Tensor* other = driver.run({.inputs = {first}, .outputs = {second}})[0];
    const bool resident = first->storage->resident();
    driver.let_go(*first);
    driver.let_go(*other);
    return resident;
  };
  CHECK(!step(256));  // the plan frees what the first op made
  CHECK(step(512));   // that was not the planned step
  CHECK(!step(256));
  const Stats stats = driver.engine().stats();
  CHECK_EQUAL(stats.planned_steps, 2u);
  CHECK_EQUAL(stats.plan_losses, 1u);
  CHECK(driver.engine().why_lost().find("other sizes") != std::string::npos);
  driver.let_go(*source);
}

TEST(pages_come_back_as_they_were_and_the_file_has_no_name) {
  const std::string folder = std::filesystem::temp_directory_path() / "coop-page-test";
  std::filesystem::create_directories(folder);
  {
    PageFile file(folder, 4096);
    std::vector<unsigned char> bytes(1000), back(1000);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7);
    const std::uint32_t page = file.write(bytes.data(), bytes.size());
    CHECK(page > 0);
    CHECK(std::filesystem::is_empty(folder));
    CHECK(file.read(page, back.data()));
    CHECK(bytes == back);
    CHECK_EQUAL(file.write(bytes.data(), 4000), 0u);  // more than it may hold
    file.drop(page);
    CHECK_EQUAL(file.write(bytes.data(), bytes.size()), page);  // used again
  }
  std::filesystem::remove(folder);
  PageFile nowhere(folder + "/nowhere");
  const char byte = 1;
  CHECK_EQUAL(nowhere.write(&byte, 1), 0u);
}
