// A driver with real bytes and no tensor library.
//
// The arena is a vector of bytes; an op is a fixed function of its inputs' bytes; running it again
// computes it again. Beside its bytes in the arena every tensor carries the bytes it would have in
// an unlimited run, so that each read can be compared. Around an op it goes through the same
// protocol as the torch hook (engine/op_call.h).
//
// What it watches over by itself: no evicted or moved storage is read at its old place, operands
// stay where they are while a kernel runs, victims are evictable, and under policy coop they lie
// side by side and the request lands there. It is one class, and long because it replaces both the
// hook and PyTorch.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "engine/op_call.h"
#include "mirror.h"

namespace fake {

using namespace coop;
using Values = std::vector<unsigned char>;

// How to run an op again.
struct Recipe {
  std::uint64_t seed = 0;
  Seconds cost = 0;
  InPlace in_place = InPlace::no;
  std::vector<Bytes> outputs;  // the target first, if in place
  std::vector<Bytes> scratch;  // allocated before the output of the same number; the rest after all outputs
  int failures = 0;            // so many replays throw
};

// What the program holds: the driver's handle of a storage.
struct Tensor {
  enum class State { attached, detached, outside, abandoned };

  Values expected;             // the bytes an unlimited run has here
  Values own;                  // the bytes, if they lie outside the arena
  Storage* storage = nullptr;  // null: outside, and no recorded op reads it
  Bytes offset = 0;
  State state = State::attached;
  int pins = 0;
  bool exposed = false;
  bool gone = false;  // let go by the program, still read by the lineage

  Bytes bytes() const { return expected.size(); }
};

// One op of a program.
struct Call {
  std::vector<Tensor*> inputs = {};
  std::vector<Bytes> outputs = {};  // new ones
  Tensor* target = nullptr;         // overwritten in place; not among the inputs
  InPlace in_place = InPlace::on_old;
  std::vector<Bytes> scratch = {};
  Seconds cost = 1e-6;
  bool record = true;
  bool fails = false;                 // the kernel throws half way
  std::function<void()> during = {};  // what others do while the kernel runs
};

struct KernelError : std::runtime_error {
  KernelError() : std::runtime_error("a kernel failed") {}
};
struct ReplayError : std::runtime_error {
  ReplayError() : std::runtime_error("a kernel failed in a replay") {}
};

inline unsigned char compute(std::uint64_t seed, std::size_t output, Bytes i,
                             std::span<const std::span<const unsigned char>> inputs) {
  std::uint64_t hash = seed + output * 0x9E3779B97F4A7C15ull + i * 0xD1B54A32D192ED03ull;
  for (const auto input : inputs) {
    hash = (hash ^ input[i % input.size()]) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 29;
  }
  return static_cast<unsigned char>(hash >> 56);
}

class FakeDriver final : public Driver {
 public:
  // `spare` bytes behind the arena, for the end.
  explicit FakeDriver(const Options& options, Bytes spare = 0)
      : memory_(options.budget + spare), spare_(spare), engine_(options, *this) {}
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  Engine& engine() { return engine_; }
  // Checks the victims of every request. Not with several threads: they would look at each other's.
  void watch_requests() {
    watch_requests_ = true;
    engine_.watch(true);
  }
  std::size_t recipes() const { return recipes_.size(); }
  std::list<Tensor>& tensors() { return tensors_; }
  std::uint64_t replays = 0, compared = 0, windows = 0, pages_lost = 0;
  double page_rate = 1e6;     // bytes per second
  int page_trouble = 0;       // one in so many pages cannot be written, and one comes back wrong; 0: none
  int patience = 0;           // transfers take up to so many polls
  bool many_threads = false;  // others let go of tensors meanwhile

  // --- a program ---------------------------------------------------------------------------------------------------------

  Tensor* source(Bytes bytes) {
    Values values(bytes);
    fill(values);
    return source(values);
  }
  Tensor* source(const Values& values) {
    const Bytes bytes = values.size();
    engine_.expect(Side::low);
    Block* block = allocate(bytes);
    Tensor& tensor = make_tensor(bytes);
    tensor.expected = values;
    std::copy(tensor.expected.begin(), tensor.expected.end(), at(block->offset, bytes));
    bind(tensor, block);
    return &tensor;
  }

  // The program drops a source and makes the same bytes again.
  Tensor* refill(Tensor& source_) {
    const Values values = source_.expected;
    returning_ = source_.storage->uses ? source_.storage : nullptr;
    let_go(source_);
    if (returning_) engine_.expect_back(*returning_, true);
    Tensor* again = source(values);
    Storage* before = std::exchange(returning_, nullptr);  // null: nothing reads it any more
    if (before && before->block) {
      engine_.replace(*before, *again->storage);
    } else if (before) {
      engine_.expect_back(*before, false);
    }
    return again;
  }

  // Its bytes lie outside the arena. The engine knows it only while a recorded op reads it.
  Tensor* foreign(Bytes bytes) {
    Tensor& tensor = make_tensor(bytes);
    fill(tensor.expected);
    tensor.own = tensor.expected;
    tensor.state = Tensor::State::outside;
    return &tensor;
  }

  std::vector<Tensor*> run(const Call& call) {
    Recipe recipe{next_seed(), call.cost, call.target ? call.in_place : InPlace::no, {}, call.scratch, 0};
    if (call.target) recipe.outputs.push_back(call.target->bytes());
    recipe.outputs.insert(recipe.outputs.end(), call.outputs.begin(), call.outputs.end());

    OpCall op;
    op.begin(engine_, "");
    std::vector<Tensor*> arguments = call.inputs;
    if (recipe.in_place == InPlace::on_old) arguments.insert(arguments.begin(), call.target);
    std::vector<Storage*> inputs, snapshots;
    for (Tensor* tensor : arguments) inputs.push_back(storage_of(*tensor));
    Storage* target = call.target ? storage_of(*call.target) : nullptr;
    std::vector<Storage*> by_age = inputs;
    if (target) by_age.push_back(target);
    std::sort(by_age.begin(), by_age.end(),
              [](const Storage* one, const Storage* other) { return one->id < other->id; });
    for (Storage* storage : by_age) op.add(*storage, OpCall::Access::read, true);
    if (target) op.add(*target, OpCall::Access::write, false);
    prepared_ = op.operands();
    try {
      CHECK(!forgotten_operand_);
      op.enter();
      CHECK(!forgotten_operand_);
    } catch (...) {
      prepared_.clear();
      op.give_up();
      throw;
    }

    std::vector<Storage*> edges = inputs;
    std::vector<Block*> produced(recipe.outputs.size(), nullptr);
    bool record = call.record && op.recordable();
    const auto forget_snapshots = [&] {
      for (Storage* snapshot : snapshots) engine_.reconsider(*snapshot);
      snapshots.clear();
    };
    try {
      op.copy_written([](Storage&) {});
      if (record) {
        for (std::size_t i = 0; i < edges.size(); ++i) {
          if (arguments[i]->exposed) snapshots.push_back(edges[i] = snapshot(*arguments[i]));
        }
      }
      Bytes all = 1;
      for (const Bytes bytes : recipe.outputs) all += bytes;
      engine_.expect(engine_.side_of(call.cost / static_cast<double>(all)));
      op.run(
          [&] {
            kernel(recipe, inputs, target, produced, call.fails);
            if (call.during) call.during();
          },
          [&] { return !target; }, [](const Shortage&, bool) {});
    } catch (const KernelError&) {
      prepared_.clear();
      if (call.target) {  // half of it is done
        const Values after = result(recipe, arguments, 0);
        std::copy_n(after.begin(), after.size() / 2, call.target->expected.begin());
        compare(*call.target);
      }
      op.overwritten();
      forget_snapshots();
      op.leave();
      throw;
    } catch (...) {
      prepared_.clear();
      op.overwritten();
      forget_snapshots();
      op.leave();
      throw;
    }
    prepared_.clear();

    std::vector<Tensor*> made;
    std::vector<Storage*> outputs;
    std::vector<Values> expected;
    for (std::size_t i = 0; i < recipe.outputs.size(); ++i) expected.push_back(result(recipe, arguments, i));
    if (call.target) {
      call.target->expected = expected[0];
      outputs.push_back(target);
      compare(*call.target);
    }
    for (std::size_t i = outputs.size(); i < recipe.outputs.size(); ++i) {
      Tensor& tensor = make_tensor(recipe.outputs[i]);
      tensor.expected = expected[i];
      compare(tensor, produced[i]->offset);
      bind(tensor, produced[i]);
      made.push_back(&tensor);
      outputs.push_back(tensor.storage);
    }
    record = record && !outputs.empty();
    if (record) {
      auto* kept = new Recipe(recipe);
      recipes_[recipe.seed] = kept;
      op.record(kept, call.cost, edges, outputs, recipe.in_place);
    } else {
      op.overwritten();
    }
    forget_snapshots();
    op.leave();
    std::vector<Storage*> fresh;
    for (const Tensor* tensor : made) fresh.push_back(tensor->storage);
    op.ran(call.cost, fresh);
    return made;
  }

  // Brings it back and compares it with the unlimited run.
  void read(Tensor& tensor) {
    if (!tensor.storage || tensor.storage->foreign) {
      compare(tensor);
      return;
    }
    std::vector<Storage*> operands{tensor.storage};
    enter(operands);
    compare(tensor);
    engine_.leave(operands);
  }

  void let_go(Tensor& tensor) {
    if (tensor.pins) {
      for (; tensor.pins; --tensor.pins) pinned_.push_back(tensor.storage);
    }
    if (tensor.storage && tensor.storage->foreign) {
      tensor.gone = true;  // the lineage still reads it
      return;
    }
    Storage* storage = tensor.storage;
    erase(tensor);
    if (storage) engine_.let_go(*storage);
  }
  // The tensor, to be let go by another thread.
  std::list<Tensor> hand_over(Tensor& tensor) {
    std::list<Tensor> handed;
    const auto at = std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return &t == &tensor; });
    handed.splice(handed.end(), tensors_, at);
    return handed;
  }
  void pin(Tensor& tensor) {
    engine_.pin(*tensor.storage);
    ++tensor.pins;
  }
  void unpin(Tensor& tensor) {
    engine_.unpin(*tensor.storage);
    --tensor.pins;
  }
  // Pins that outlived their tensors.
  void unpin_rest() {
    for (Storage* storage : pinned_) engine_.unpin(*storage);
    pinned_.clear();
  }
  std::size_t retire() {
    const std::size_t lost = engine_.retire(spare_);
    pinned_.clear();
    for (Tensor& tensor : tensors_) tensor.pins = 0;
    return lost;
  }
  void expose(Tensor& tensor) {
    engine_.expose(*tensor.storage);
    tensor.exposed = true;
  }
  // Somebody writes through an escaped pointer.
  void write_behind(Tensor& tensor) {
    fill(tensor.expected);
    std::copy(tensor.expected.begin(), tensor.expected.end(), at(tensor.offset, tensor.bytes()));
  }
  // The next replay of one of the recorded ops will throw.
  void spoil(std::uint64_t which) {
    if (recipes_.empty()) return;
    ++std::next(recipes_.begin(), static_cast<std::ptrdiff_t>(which % recipes_.size()))->second->failures;
  }
  void spoil_all(int failures) {
    for (auto& [seed, recipe] : recipes_) recipe->failures = failures;
  }

  // Raw memory, filled with rubbish.
  Block* allocate(Bytes bytes) {
    Block* block = watch_requests_ ? watched_allocate(bytes) : engine_.allocate(bytes);
    CHECK(block->bytes >= bytes && block->state == Block::State::raw);
    std::memset(at(block->offset, block->bytes), 0xA5, block->bytes);
    return block;
  }
  unsigned char* at(Bytes offset, Bytes bytes) {
    CHECK_AT_MOST(offset + bytes, engine_.arena().capacity());
    return memory_.data() + offset;
  }

  // Nothing is left of the program: not a byte, not a record.
  void check_empty() {
    unpin_rest();
    for (std::size_t i = recipes_.size() + 1; i && !recipes_.empty(); --i) engine_.ran(0);
    engine_.ran(0);
    engine_.pack();  // after the last transfer
    engine_.check();
    const Stats stats = engine_.stats();
    CHECK_EQUAL(recipes_.size(), 0u);
    CHECK_EQUAL(stats.storages, 0u);
    CHECK_EQUAL(stats.in_use, 0u);
    CHECK_EQUAL(stats.cached, 0u);
    CHECK_EQUAL(stats.sources, 0u);
    CHECK(engine_.empty());
    CHECK_EQUAL(engine_.arena().blocks(), 1u);
    CHECK_EQUAL(engine_.arena().largest_free(), engine_.arena().capacity());
  }

  // Sums that hold between any two ops.
  void check_sums() {
    engine_.check();
    const Stats stats = engine_.stats();
    CHECK_EQUAL(stats.in_use + stats.cached + stats.free, engine_.arena().capacity());
    CHECK_AT_MOST(stats.in_use, stats.peak);
    CHECK_AT_MOST(stats.peak, stats.budget);
    CHECK_AT_MOST(stats.largest_free, stats.free);
    if (watch_requests_) reflect();
  }

  // --- Driver ------------------------------------------------------------------------------------------------------------

  Seconds replay(Op& op, Block* target, Block** produced) override {
    ++replays;
    auto& recipe = *static_cast<Recipe*>(op.recipe);
    CHECK_EQUAL(op.outputs_count, recipe.outputs.size());
    CHECK_EQUAL(target != nullptr, recipe.in_place != InPlace::no);
    const bool fails = recipe.failures > 0;
    if (fails) --recipe.failures;
    std::vector<Storage*> inputs;
    for (std::uint32_t i = 0; i < op.inputs_count; ++i) inputs.push_back(op.inputs()[i].storage);
    std::vector<Block*> blocks(op.outputs_count, nullptr);
    blocks[0] = target;
    try {
      kernel(recipe, inputs, nullptr, blocks, fails);
    } catch (const KernelError&) {
      throw ReplayError();
    }
    std::copy(blocks.begin(), blocks.end(), produced);
    return recipe.cost;
  }
  void detach(Storage& storage) override {
    Tensor& tensor = tensor_of(storage);
    CHECK_EQUAL(tensor.state, Tensor::State::attached);
    CHECK_EQUAL(tensor.offset, storage.block->offset);
    CHECK(storage.held && !storage.claims.pins && !storage.claims.locks && (storage.producer || storage.copy.page));
    tensor.state = Tensor::State::detached;
    std::memset(at(tensor.offset, tensor.bytes()), 0xEE, tensor.bytes());
  }
  void attach(Storage& storage) override {
    Tensor& tensor = tensor_of(storage);
    CHECK(tensor.state == Tensor::State::attached || tensor.state == Tensor::State::detached);
    tensor.state = Tensor::State::attached;
    tensor.offset = storage.block->offset;
  }
  Seconds copy(Bytes to, Bytes from, Bytes bytes) override {
    std::memmove(at(to, bytes), at(from, bytes), bytes);
    return 0;
  }
  void drop(Op& op) override {
    auto* recipe = static_cast<Recipe*>(op.recipe);
    CHECK_EQUAL(recipes_.erase(recipe->seed), 1u);
    delete recipe;
  }
  void drop(Storage& storage) override {
    if (returning_ == &storage) returning_ = nullptr;
    if (!storage.handle) return;  // let go, perhaps on another thread
    if (std::find(prepared_.begin(), prepared_.end(), &storage) != prepared_.end()) {
      forgotten_operand_ = true;  // reported by enter
    }
    Tensor& tensor = tensor_of(storage);
    tensor.storage = nullptr;
    if (tensor.gone) erase(tensor);
  }
  bool evacuate(Storage& storage) override {
    Tensor& tensor = tensor_of(storage);
    CHECK_EQUAL(tensor.state, Tensor::State::attached);
    const unsigned char* from = at(storage.block->offset, storage.bytes);
    tensor.own.assign(from, from + storage.bytes);
    tensor.state = Tensor::State::outside;
    return true;
  }
  void abandon(Storage& storage) override {
    Tensor& tensor = tensor_of(storage);
    CHECK_EQUAL(tensor.state, Tensor::State::detached);
    tensor.state = Tensor::State::abandoned;
    tensor.storage = nullptr;
  }
  std::uint64_t digest(Bytes offset, Bytes bytes) override {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    for (const unsigned char* p = at(offset, bytes); bytes; --bytes) hash = (hash ^ *p++) * 0x100000001b3ull;
    return hash | 1;
  }
  // A transfer ends some polls later. Meanwhile nobody may touch what is written, or trust what is
  // read.
  std::uint32_t begin_out(Bytes offset, Bytes bytes, Seconds) override {
    const std::lock_guard guard(transfers_mutex_);
    const unsigned char* from = at(offset, bytes);
    transfers_[++last_ticket_] = {true, offset, Values(from, from + bytes), 0, polls()};
    return last_ticket_;
  }
  std::uint32_t begin_in(std::uint32_t page, Bytes offset, Bytes bytes, Seconds) override {
    CHECK_EQUAL(pages_.at(page).size(), bytes);
    std::memset(at(offset, bytes), 0xDD, bytes);
    const std::lock_guard guard(transfers_mutex_);
    transfers_[++last_ticket_] = {false, offset, Values(bytes, 0xDD), page, polls()};
    return last_ticket_;
  }
  void wait(std::uint32_t ticket, Seconds) override {
    const std::lock_guard guard(transfers_mutex_);
    const auto found = transfers_.find(ticket);
    if (found == transfers_.end()) return;  // another thread has finished it
    found->second.polls = 0;
    found->second.awaited = true;
  }
  Transfer finish(std::uint32_t ticket, Seconds) override {
    const std::lock_guard guard(transfers_mutex_);
    FakeTransfer& transfer = transfers_.at(ticket);
    const Bytes bytes = transfer.bytes.size();
    unsigned char* memory = at(transfer.offset, bytes);
    CHECK(std::equal(transfer.bytes.begin(), transfer.bytes.end(), memory));
    if (transfer.polls-- > 0) return {};
    Transfer result{.done = true, .seconds = static_cast<double>(bytes) / page_rate};
    result.waited = transfer.awaited ? result.seconds / 2 : 0;
    const bool trouble = page_trouble && ++page_calls_ % page_trouble == 0;
    if (transfer.out) {
      if (!trouble) {
        result.page = ++last_page_;
        pages_[last_page_] = transfer.bytes;
      }
    } else {
      const Values& values = pages_.at(transfer.page);
      std::copy(values.begin(), values.end(), memory);
      pages_lost += trouble;
      if (trouble) *memory ^= 1;
      result.page = trouble ? 0 : transfer.page;
    }
    transfers_.erase(ticket);
    return result;
  }
  bool cancel(std::uint32_t ticket) override {
    const std::lock_guard guard(transfers_mutex_);
    return ticket % 2 && transfers_.erase(ticket);
  }
  std::size_t transfers() const { return transfers_.size(); }
  void drop_page(std::uint32_t page) override {
    for (const auto& [ticket, transfer] : transfers_) CHECK(transfer.out || transfer.page != page);
    CHECK_EQUAL(pages_.erase(page), 1u);
  }
  std::size_t pages() const { return pages_.size(); }

 private:
  std::uint64_t next_seed() { return ++seed_ * 0x9E3779B97F4A7C15ull; }
  void fill(Values& values) {
    const std::uint64_t seed = next_seed();
    for (Bytes i = 0; i < values.size(); ++i) values[i] = compute(seed, 0, i, {});
  }
  Tensor& make_tensor(Bytes bytes) {
    Tensor& tensor = tensors_.emplace_back();
    tensor.expected.resize(bytes);
    return tensor;
  }
  void erase(Tensor& tensor) {
    tensors_.remove_if([&](const Tensor& other) { return &other == &tensor; });
  }
  static Tensor& tensor_of(Storage& storage) {
    CHECK(storage.handle != nullptr);
    return *static_cast<Tensor*>(storage.handle);
  }
  Storage* storage_of(Tensor& tensor) {
    if (!tensor.storage) tensor.storage = engine_.bind_foreign(tensor.bytes(), &tensor);
    return tensor.storage;
  }
  void bind(Tensor& tensor, Block* block) {
    tensor.offset = block->offset;
    tensor.storage = engine_.bind(block->offset, tensor.bytes(), &tensor);
    CHECK(tensor.storage != nullptr);
  }

  void enter(std::vector<Storage*>& operands) {
    CHECK(!forgotten_operand_);
    engine_.enter(operands);
    CHECK(!forgotten_operand_);
  }
  // What an exposed tensor holds now, as a source of its own.
  Storage* snapshot(Tensor& tensor) {
    Block* block = allocate(tensor.bytes());
    std::memcpy(at(block->offset, tensor.bytes()), at(tensor.offset, tensor.bytes()), tensor.bytes());
    return engine_.bind_hidden(block->offset, tensor.bytes());
  }

  // Where the bytes of an operand are, as its tensor knows it.
  unsigned char* data(Storage& storage) {
    CHECK(storage.resident());
    CHECK(storage.claims.locks > 0);
    if (storage.foreign) return tensor_of(storage).own.data();
    if (!many_threads && storage.held) {
      const Tensor& tensor = tensor_of(storage);
      CHECK_EQUAL(tensor.state, Tensor::State::attached);
      CHECK_EQUAL(tensor.offset, storage.block->offset);
    }
    return at(storage.block->offset, storage.bytes);
  }

  // Scratch, outputs, work. `target` is the storage that a first run overwrites; in a replay
  // produced[0] holds its block.
  void kernel(const Recipe& recipe, const std::vector<Storage*>& inputs, Storage* target, std::vector<Block*>& produced,
              bool fails) {
    const bool in_place = recipe.in_place != InPlace::no, again = in_place && !target;
    std::vector<Block*> scratch, outputs;
    try {
      std::vector<unsigned char*> before;
      const auto place_of = [&](std::size_t i) {
        return again && i == 0 && recipe.in_place == InPlace::on_old ? at(produced[0]->offset, inputs[0]->bytes)
                                                                     : data(*inputs[i]);
      };
      for (std::size_t i = 0; i < inputs.size(); ++i) before.push_back(place_of(i));
      for (std::size_t i = 0; i < std::max(recipe.scratch.size(), recipe.outputs.size()); ++i) {
        if (i < recipe.scratch.size()) scratch.push_back(allocate(recipe.scratch[i]));
        if (i < recipe.outputs.size() && !(i == 0 && in_place)) {
          outputs.push_back(produced[i] = allocate(recipe.outputs[i]));
        }
        if (scratch.size() > 1) {  // some of it is given back early
          engine_.free(scratch.front()->offset);
          scratch.erase(scratch.begin());
        }
      }
      std::vector<std::span<const unsigned char>> spans;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        CHECK_EQUAL(static_cast<void*>(place_of(i)), static_cast<void*>(before[i]));  // rule 3
        spans.emplace_back(before[i], inputs[i]->bytes);
      }
      for (std::size_t k = recipe.outputs.size(); k-- > 0;) {  // the target last: the others read its old bytes
        const Bytes bytes = recipe.outputs[k];
        unsigned char* to = k == 0 && target ? data(*target) : at(produced[k]->offset, bytes);
        const Bytes done = fails && k == 0 ? bytes / 2 : bytes;
        for (Bytes i = 0; i < done; ++i) to[i] = compute(recipe.seed, k, i, spans);
      }
      if (fails) throw KernelError();
      for (Block* block : scratch) engine_.free(block->offset);
    } catch (...) {
      for (Block* block : scratch) engine_.free(block->offset);
      for (Block* block : outputs) engine_.free(block->offset);
      throw;
    }
  }
  static Values result(const Recipe& recipe, const std::vector<Tensor*>& arguments, std::size_t output) {
    std::vector<std::span<const unsigned char>> spans;
    for (const Tensor* tensor : arguments) spans.emplace_back(tensor->expected);
    Values values(recipe.outputs[output]);
    for (Bytes i = 0; i < values.size(); ++i) values[i] = compute(recipe.seed, output, i, spans);
    return values;
  }
  // The bytes of a tensor that must not leave now.
  void compare(const Tensor& tensor) {
    ++compared;
    if (tensor.state == Tensor::State::outside) {
      CHECK(tensor.own == tensor.expected);
      return;
    }
    CHECK_EQUAL(tensor.state, Tensor::State::attached);
    CHECK(tensor.storage->block != nullptr);
    CHECK_EQUAL(tensor.offset, tensor.storage->block->offset);
    compare(tensor, tensor.offset);
  }
  void compare(const Tensor& tensor, Bytes offset) {
    CHECK(std::memcmp(at(offset, tensor.bytes()), tensor.expected.data(), tensor.bytes()) == 0);
  }

  // What happened since the last time, and the arena as it is now must agree.
  std::vector<Event> reflect() {
    std::vector<Event> events = engine_.take_events();
    mirror_.apply(events);
    mirror_.compare(engine_.arena());
    return events;
  }

  // Rules 3 and 7: what leaves for a request is evictable; under policy coop it lies side by side
  // with what is free or moved, and the request lands there.
  Block* watched_allocate(Bytes bytes) {
    struct Place {
      Bytes offset, end;
      bool free, evictable, wanted;
      std::uint64_t id;
    };
    std::vector<Place> places;
    for (const Block* block = engine_.arena().first(); block; block = block->next) {
      const Storage* storage = block->storage;
      places.push_back({block->offset, block->end(), block->state == Block::State::free,
                        storage && (storage->evictable() || storage->copy.transit != Transit::none),
                        storage && storage->claims.wanted > 0, storage ? storage->id : 0});
    }
    reflect();
    Block* block = engine_.allocate(bytes);
    std::vector<std::uint64_t> evicted, moved;
    for (const Event& event : reflect()) {
      if (event.kind == EventKind::evict) evicted.push_back(event.storage);
      if (event.kind == EventKind::move) moved.push_back(event.storage);
      if (event.kind != EventKind::free && event.kind != EventKind::in) continue;
      for (Place& place : places) {  // a transfer has ended
        if (place.offset != event.offset || place.id) continue;
        place.id = event.storage;
        place.free = !place.id;
        place.evictable = place.wanted = true;  // or not: nobody knew
      }
    }
    const auto is_in = [](const std::vector<std::uint64_t>& ids, std::uint64_t id) {
      return id && std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    for (const Place& place : places) {
      if (is_in(evicted, place.id)) CHECK(place.evictable);
      if (is_in(moved, place.id)) {
        CHECK(!place.evictable || place.wanted || engine_.options().move);
        CHECK(!is_in(evicted, place.id));
      }
    }
    const Options& options = engine_.options();
    if ((evicted.empty() && moved.empty()) || options.policy != "coop" || !options.window) return block;
    ++windows;
    const auto touched = [&](const Place& place) { return is_in(evicted, place.id) || is_in(moved, place.id); };
    std::size_t first = 0, last = places.size() - 1;
    while (!touched(places[first])) ++first;
    while (!touched(places[last])) --last;
    for (std::size_t i = first; i <= last; ++i) CHECK(places[i].free || touched(places[i]));
    while (first > 0 && places[first - 1].free) --first;
    while (last + 1 < places.size() && places[last + 1].free) ++last;
    CHECK(places[first].offset <= block->offset && block->end() <= places[last].end);
    return block;
  }

  std::list<Tensor> tensors_;
  Values memory_;
  const Bytes spare_;
  std::map<std::uint64_t, Recipe*> recipes_;
  std::vector<Storage*> pinned_;    // pins that outlived their tensors
  std::vector<Storage*> prepared_;  // operands of the op that is about to run, or runs
  std::map<std::uint32_t, Values> pages_;
  std::uint32_t last_page_ = 0, last_ticket_ = 0;
  struct FakeTransfer {
    bool out = false;
    Bytes offset = 0;
    Values bytes = {};
    std::uint32_t page = 0;
    int polls = 0;
    bool awaited = false;
  };
  std::map<std::uint32_t, FakeTransfer> transfers_;
  std::mutex transfers_mutex_;  // waiting is done with the engine's lock open
  int polls() { return patience ? static_cast<int>(last_ticket_ * 7 % static_cast<unsigned>(patience + 1)) : 0; }
  int page_calls_ = 0;
  std::uint64_t seed_ = 0;
  bool forgotten_operand_ = false;
  Storage* returning_ = nullptr;  // a source that is being made again
  bool watch_requests_ = false;
  Mirror mirror_;
  Engine engine_;  // last: it tells the driver of every end
};

}  // namespace fake
