// Writing arguments down, and making tensors of them again.
#include "torch/recipe.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace coop {

namespace {
constexpr std::size_t kValueAlignment = 16;
}

RandomState RandomState::of(at::CPUGeneratorImpl& generator) {
  return {generator.engine(), generator.next_float_normal_sample(), generator.next_double_normal_sample()};
}

void RandomState::restore(at::CPUGeneratorImpl& generator) const {
  generator.set_engine(engine);
  generator.set_next_float_normal_sample(next_float);
  generator.set_next_double_normal_sample(next_double);
}

at::CPUGeneratorImpl& RandomState::global() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

namespace {

#if defined(__x86_64__)
constexpr unsigned kDenormalBits = 0x8040;  // flush to zero, denormals are zero
unsigned denormal_mode() { return _mm_getcsr() & kDenormalBits; }
void set_denormal_mode(unsigned mode) { _mm_setcsr((_mm_getcsr() & ~kDenormalBits) | mode); }
#else
unsigned denormal_mode() { return 0; }
void set_denormal_mode(unsigned) {}
#endif

}  // namespace

namespace {

constexpr at::Float32Op kMultiplying[] = {at::Float32Op::CONV, at::Float32Op::RNN, at::Float32Op::MATMUL};

Float32Precisions float32_precisions() {
  Float32Precisions all;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, kMultiplying[i]);
    all[i] = static_cast<std::uint8_t>(precision);
  }
  return all;
}

// What is not set for a kind of op follows from more general settings: it stays so where those give
// the same.
void set_float32_precisions(const Float32Precisions& wanted) {
  at::Context& context = at::globalContext();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto precision = static_cast<at::Float32Precision>(wanted[i]);
    if (context.float32Precision(at::Float32Backend::MKLDNN, kMultiplying[i]) == precision) continue;
    context.setFloat32Precision(at::Float32Backend::MKLDNN, kMultiplying[i], at::Float32Precision::NONE);
    if (context.float32Precision(at::Float32Backend::MKLDNN, kMultiplying[i]) == precision) continue;
    context.setFloat32Precision(at::Float32Backend::MKLDNN, kMultiplying[i], precision);
  }
}

}  // namespace

Settings Settings::now(bool multiplies) {
  const at::Context& context = at::globalContext();
  return {Threads::now(),
          c10::GradMode::is_enabled(),
          context.userEnabledMkldnn(),
          context.deterministicAlgorithms(),
          context.deterministicAlgorithmsWarnOnly(),
          context.deterministicFillUninitializedMemory(),
          context.deterministicMkldnn(),
          context.userEnabledNNPACK(),
          context.allowFP16ReductionCPU(),
          denormal_mode(),
          c10::get_default_dtype(),
          multiplies ? std::optional(float32_precisions()) : std::nullopt};
}

void Settings::apply() const {
  const Settings before = now(precision.has_value());
  if (*this == before) return;
  at::Context& context = at::globalContext();
  if (threads != before.threads) threads.apply();
  if (grad != before.grad) c10::GradMode::set_enabled(grad);
  if (mkldnn != before.mkldnn) context.setUserEnabledMkldnn(mkldnn);
  context.setDeterministicAlgorithms(deterministic, deterministic_warn_only);
  context.setDeterministicFillUninitializedMemory(fill_uninitialised);
  context.setDeterministicMkldnn(mkldnn_deterministic);
  context.setUserEnabledNNPACK(nnpack);
  if (half_sums != before.half_sums) context.setAllowFP16ReductionCPU(half_sums);
  if (denormals != before.denormals) set_denormal_mode(denormals);
  if (dtype != before.dtype) c10::set_default_dtype(dtype);
  if (precision && precision != before.precision) set_float32_precisions(*precision);
}

SettingsThen::SettingsThen(const Settings& then) : before_(Settings::now(then.precision.has_value())) { then.apply(); }
SettingsThen::~SettingsThen() { before_.apply(); }

void Draft::spec(const at::Tensor& tensor, std::int32_t edge, const void* value, Bytes value_bytes) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const auto sizes = impl.sizes();
  const auto strides = impl.strides();
  TensorSpec head;
  std::memset(&head, 0, sizeof head);
  head.edge = edge;
  head.dtype = static_cast<std::uint16_t>(c10::typeMetaToScalarType(impl.dtype()));
  head.dim = static_cast<std::uint8_t>(sizes.size());
  head.wrapped_number = impl.is_wrapped_number();
  head.requires_grad = impl.requires_grad();
  head.value_bytes = edge == kByValue ? static_cast<std::uint32_t>(value_bytes) : 0;
  head.keys = (impl.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView).raw_repr();
  head.offset = impl.storage_offset();
  put(head);
  const auto append = [this](const void* from, std::size_t count) {
    const auto* begin = static_cast<const unsigned char*>(from);
    bytes_.insert(bytes_.end(), begin, begin + count);
  };
  append(sizes.data(), sizes.size() * sizeof(std::int64_t));
  append(strides.data(), strides.size() * sizeof(std::int64_t));
  if (head.value_bytes) {
    bytes_.resize((bytes_.size() + kValueAlignment - 1) / kValueAlignment * kValueAlignment);
    append(value, head.value_bytes);
  }
}

void Draft::no_element() {
  TensorSpec head;
  std::memset(&head, 0, sizeof head);
  head.edge = kUndefined;
  put(head);
}

Recipe::Recipe(OpInfo& of, const Draft& draft, const std::vector<ReturnPlace>& where,
               std::unique_ptr<RandomState> state, const Settings& set)
    : info(of),
      places(where.begin(), where.end()),
      random(std::move(state)),
      settings(set),
      bytes_(draft.bytes_),
      values_(draft.values_.begin(), draft.values_.end()) {}

namespace {

c10::intrusive_ptr<c10::StorageImpl> view_memory(Recipe::Memory memory) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               static_cast<std::int64_t>(memory.bytes),
                                               c10::DataPtr(memory.address, c10::kCPU), nullptr, false);
}

}  // namespace

void Recipe::push_arguments(const std::vector<Memory>& inputs, Memory target, torch::jit::Stack& stack) const {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages(inputs.size());
  c10::intrusive_ptr<c10::StorageImpl> target_storage;
  const unsigned char* at = bytes_.data();
  const unsigned char* const end = at + bytes_.size();
  const auto get = [&](auto& item) {
    std::memcpy(&item, at, sizeof item);
    at += sizeof item;
  };
  const auto tensor = [&]() -> at::Tensor {
    TensorSpec head;
    get(head);
    if (head.edge == kUndefined) return {};
    c10::SmallVector<std::int64_t, 8> sizes(head.dim), strides(head.dim);
    std::memcpy(sizes.data(), at, head.dim * sizeof(std::int64_t));
    at += head.dim * sizeof(std::int64_t);
    std::memcpy(strides.data(), at, head.dim * sizeof(std::int64_t));
    at += head.dim * sizeof(std::int64_t);
    c10::intrusive_ptr<c10::StorageImpl> storage;
    if (head.edge >= 0) {
      auto& shared = storages[static_cast<std::size_t>(head.edge)];
      if (!shared) shared = view_memory(inputs[static_cast<std::size_t>(head.edge)]);
      storage = shared;
    } else if (head.edge == kTarget) {
      if (!target_storage) target_storage = view_memory(target);
      storage = target_storage;
    } else if (head.edge == kByValue) {  // lives in the recipe; nothing writes to it
      const auto offset = static_cast<std::size_t>(at - bytes_.data());
      at += (kValueAlignment - offset % kValueAlignment) % kValueAlignment;
      storage = view_memory({const_cast<unsigned char*>(at), head.value_bytes});
      at += head.value_bytes;
    } else {
      storage = view_memory({});
    }
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKeySet::RAW, head.keys),
        c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(head.dtype)));
    impl->set_sizes_and_strides(sizes, strides, head.offset);
    if (head.wrapped_number) impl->set_wrapped_number(true);
    at::Tensor result(std::move(impl));
    // Autograd marks what a foreach op overwrites, whatever its type; nobody else may say so of
    // integers.
    const at::ScalarType type = result.scalar_type();
    if (head.requires_grad && (c10::isFloatingType(type) || c10::isComplexType(type))) result.set_requires_grad(true);
    return result;
  };
  std::size_t value = 0;
  while (at < end) {
    Draft::Tag tag;
    get(tag);
    switch (tag) {
      case Draft::Tag::plain: {
        const c10::IValue& item = values_[value++];
        // A replay must not advance the generator that was written down.
        stack.emplace_back(item.isGenerator() ? c10::IValue(item.toGenerator().clone()) : item);
        break;
      }
      case Draft::Tag::tensor: stack.emplace_back(tensor()); break;
      case Draft::Tag::undefined: stack.emplace_back(at::Tensor()); break;
      case Draft::Tag::none: stack.emplace_back(); break;
      case Draft::Tag::list: {
        std::uint32_t count;
        get(count);
        c10::List<at::Tensor> list;
        list.reserve(count);
        for (std::uint32_t i = 0; i < count; ++i) list.push_back(tensor());
        stack.emplace_back(std::move(list));
        break;
      }
      case Draft::Tag::optional_list: {
        std::uint32_t count;
        get(count);
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(count);
        for (std::uint32_t i = 0; i < count; ++i) {
          at::Tensor item = tensor();
          list.push_back(item.defined() ? std::optional<at::Tensor>(std::move(item)) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
}

}  // namespace coop
