// How to run an op again: the operator and its arguments in a compact form that keeps no tensor
// alive.
//
// A tensor argument is written down as shape, strides, dtype and keys, with the number of the input
// storage it views. Small sources (a scalar, a step count) are written down by value: later changes
// to them do not matter then. Nothing in a recipe refers to autograd, so no graph is kept alive.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <c10/util/typeid.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "engine/op_call.h"
#include "torch/op_info.h"
#include "torch/threads.h"

namespace coop {

// The state of a CPU generator.
struct RandomState {
  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  static RandomState of(at::CPUGeneratorImpl& generator);
  void restore(at::CPUGeneratorImpl& generator) const;
  static at::CPUGeneratorImpl& global();
};

// How exact oneDNN's float32 has to be: in convolutions, recurrent cells and products of matrices.
using Float32Precisions = std::array<std::uint8_t, 3>;

// Settings outside of the arguments that change which kernel runs or how it splits its work.
struct Settings {
  Threads threads;
  bool grad = true;
  bool mkldnn = true;
  bool deterministic = false;
  bool deterministic_warn_only = false;
  bool fill_uninitialised = false;
  bool mkldnn_deterministic = false;
  bool nnpack = true;
  bool half_sums = true;                       // reductions of 16-bit floats in 16 bits
  unsigned denormals = 0;                      // how this thread's processor treats them
  caffe2::TypeMeta dtype;                      // of new tensors
  std::optional<Float32Precisions> precision;  // known for ops that multiply: it takes a while to ask for

  static Settings now(bool multiplies);
  void apply() const;
  bool operator==(const Settings&) const = default;
};

// While one of these lives, settings are as they were then.
class SettingsThen {
 public:
  explicit SettingsThen(const Settings& then);
  ~SettingsThen();
  SettingsThen(const SettingsThen&) = delete;
  SettingsThen& operator=(const SettingsThen&) = delete;

 private:
  const Settings before_;
};

// A tensor argument views one of these.
enum SpecialEdge : std::int32_t { kNoData = -1, kByValue = -2, kTarget = -3, kUndefined = -4 };
constexpr Bytes kByValueLimit = OpCall::kByValueLimit;

struct TensorSpec {
  std::int32_t edge;
  std::uint16_t dtype;
  std::uint8_t dim;
  bool wrapped_number;
  bool requires_grad;
  std::uint32_t value_bytes;
  std::uint64_t keys;
  std::int64_t offset;
  // sizes, strides, bytes by value follow
};

// Written while an op runs, in memory that is used over and over; kept only if the op is worth
// recording.
class Draft {
 public:
  void clear() {
    bytes_.clear();
    values_.clear();
  }
  void plain(const c10::IValue& value) {
    put(Tag::plain);
    values_.push_back(value);
  }
  void tensor(const at::Tensor& tensor, std::int32_t edge, const void* value, Bytes value_bytes) {
    put(Tag::tensor);
    spec(tensor, edge, value, value_bytes);
  }
  void undefined() { put(Tag::undefined); }
  void none() { put(Tag::none); }
  void list(std::size_t count, bool optional) {
    put(optional ? Tag::optional_list : Tag::list);
    put(static_cast<std::uint32_t>(count));
  }
  void element(const at::Tensor& tensor, std::int32_t edge, const void* value, Bytes value_bytes) {
    spec(tensor, edge, value, value_bytes);
  }
  void no_element();

 private:
  friend class Recipe;
  enum class Tag : std::uint8_t { plain, tensor, undefined, none, list, optional_list };

  template <typename T>
  void put(const T& item) {
    const auto* from = reinterpret_cast<const unsigned char*>(&item);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  void spec(const at::Tensor& tensor, std::int32_t edge, const void* value, Bytes value_bytes);

  std::vector<unsigned char> bytes_;
  std::vector<c10::IValue> values_;
};

// Where an output storage is found among what the op returns.
struct ReturnPlace {
  std::uint16_t index;
  std::uint16_t element;
};

class Recipe {
 public:
  Recipe(OpInfo& info, const Draft& draft, const std::vector<ReturnPlace>& places, std::unique_ptr<RandomState> random,
         const Settings& settings);

  // Memory of the input with this number.
  struct Memory {
    void* address = nullptr;
    Bytes bytes = 0;
  };
  // The arguments, as tensors that view the given memory without owning it.
  void push_arguments(const std::vector<Memory>& inputs, Memory target, torch::jit::Stack& stack) const;

  OpInfo& info;
  const c10::SmallVector<ReturnPlace, 2> places;
  const std::unique_ptr<RandomState> random;
  const Settings settings;

 private:
  const std::vector<unsigned char> bytes_;
  const c10::SmallVector<c10::IValue, 3> values_;
};

}  // namespace coop
