// Reading schemas, and the few operators whose schema does not say everything.
#include "torch/op_info.h"

#include <ATen/core/enum_tag.h>

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>

namespace coop {
namespace {

using Name = std::string_view;

bool any_of(Name name, std::span<const Name> names) {
  for (Name other : names) {
    if (name == other) return true;
  }
  return false;
}

bool starts_with_any(Name name, std::span<const Name> prefixes) {
  for (Name prefix : prefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// Look at shapes only. Bringing an evicted argument back for them would be wasted work.
constexpr Name kShapeOnly[] = {"empty_like", "zeros_like", "ones_like",    "full_like",
                               "rand_like",  "randn_like", "randint_like", "new_empty",
                               "new_zeros",  "new_ones",   "new_full",     "new_empty_strided"};
// Answer questions about a tensor without looking at its bytes.
constexpr Name kMetadata[] = {"is_same_size",
                              "sym_size",
                              "sym_stride",
                              "sym_numel",
                              "sym_storage_offset",
                              "size",
                              "stride",
                              "numel",
                              "dim",
                              "is_contiguous",
                              "_is_all_true_",
                              "is_strides_like_format",
                              "is_non_overlapping_and_dense",
                              "_has_same_storage_numel",
                              "_local_tensor"};
constexpr Name kUnset[] = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"};
// Write every element of self without reading any.
constexpr Name kFills[] = {"zero_",        "fill_", "normal_",    "uniform_",    "random_",
                           "exponential_", "copy_", "geometric_", "log_normal_", "cauchy_"};
constexpr Name kReshape[] = {"resize_", "resize_as_", "set_", "_resize_output_", "resize_as_sparse_", "set_data"};

constexpr Name kAccumulates[] = {"detach", "clone", "add", "add_", "copy_", "new_empty_strided", "mul"};
// Write to running statistics, whether their schema says so or not, if they train: see
// training_argument.
constexpr Name kBatchNorm[] = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
                               "batch_norm_update_stats"};
// Write to an argument, although the schema does not declare it.
constexpr struct {
  Name op;
  const char* argument;
} kHiddenWrites[] = {{"mkldnn_rnn_layer_backward", "workspace"}};
// Of c10d, whose schemas say nothing about writes: these write nothing, and the others write all
// tensors that are not named as inputs.
constexpr Name kReadOnlyCollectives[] = {"send", "barrier", "monitored_barrier_", "check_for_nan"};
constexpr Name kInputPrefixes[] = {"input", "sparse_indices"};
// Leave some bytes of a result undefined: the padding of a table, scratch space within a workspace.
constexpr struct {
  Name op;
  int result;
} kRagged[] = {{"_ctc_loss", 1}, {"mkldnn_rnn_layer", 3}};

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& handle) : op(handle) {
  const c10::FunctionSchema& schema = op.schema();
  name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  const std::string& whole = schema.name();
  const bool aten = whole.rfind("aten::", 0) == 0;
  const std::string_view base = std::string_view(whole).substr(whole.find("::") + 2);
  returns = schema.returns().size();
  collective = whole.rfind("c10d::", 0) == 0;
  const bool writes_unnamed = collective && !any_of(base, kReadOnlyCollectives);

  bool writes = false, tensors = false;
  for (const c10::Argument& argument : schema.arguments()) {
    ArgumentInfo info;
    c10::TypePtr type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::TensorType) {
      info.kind = ArgumentInfo::Kind::tensor;
    } else if (type->kind() == c10::TypeKind::GeneratorType) {
      info.kind = ArgumentInfo::Kind::generator;
      random = true;
    } else if (auto list = type->cast<c10::ListType>()) {
      c10::TypePtr element = list->getElementType();
      if (auto optional = element->cast<c10::OptionalType>()) element = optional->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) info.kind = ArgumentInfo::Kind::tensor_list;
      if (auto inner = element->cast<c10::ListType>();
          inner && inner->getElementType()->kind() == c10::TypeKind::TensorType) {
        info.kind = ArgumentInfo::Kind::tensor_lists;
      }
    }
    info.taken = argument.type()->kind() != c10::TypeKind::TensorType;
    const bool tensor = info.kind == ArgumentInfo::Kind::tensor || info.kind == ArgumentInfo::Kind::tensor_list ||
                        info.kind == ArgumentInfo::Kind::tensor_lists;
    tensors |= tensor;
    info.written = tensor && argument.alias_info() && argument.alias_info()->isWrite();
    if (tensor && writes_unnamed) info.written = !starts_with_any(argument.name(), kInputPrefixes);
    writes |= info.written;
    arguments.push_back(info);
  }
  bool returns_views = false;
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) returns_views = true;
  }

  random = random || op.hasTag(at::Tag::nondeterministic_seeded);
  shape_only = aten && any_of(base, kShapeOnly);
  factory = !tensors || shape_only;
  unset = aten && any_of(base, kUnset);
  fills = aten && any_of(base, kFills);
  accumulates = aten && any_of(base, kAccumulates);
  // Custom operators may do anything; only what is known to be pure is run again.
  replayable = aten;

  const auto argument = [&](const char* wanted) { return schema.argumentIndexWithName(wanted).value_or(-1); };
  if (aten && any_of(base, kBatchNorm)) {
    statistics = argument("running_mean");
    batch_norm = statistics >= 0;
    training_argument = argument("training");
  }
  for (Name part : {"mm", "mv", "dot", "conv", "linear", "lstm", "rnn", "gru", "attention", "mkldnn", "tensordot"}) {
    multiplies = multiplies || base.find(part) != Name::npos;
  }
  for (const auto& [writer, target] : kHiddenWrites) {
    if (!aten || base != writer || argument(target) < 0) continue;
    arguments[static_cast<std::size_t>(argument(target))].written = true;
    replayable = false;
  }
  for (const auto& [ragged, result] : kRagged) {
    if (aten && base == ragged) ragged_result = result;
  }
  if (aten) same_again = SameAgain(base, schema);

  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    kind = Kind::pass;
  } else if (aten && any_of(base, kMetadata)) {
    kind = Kind::pass;
  } else if (aten && any_of(base, kReshape)) {
    kind = Kind::reshape;
  } else if (op.hasTag(at::Tag::inplace_view)) {
    kind = Kind::view;
  } else if (writes) {
    kind = Kind::overwrite;
  } else if (returns_views) {
    kind = Kind::view;
  } else {
    kind = Kind::compute;
  }
}

Seconds OpInfo::typical_cost(Bytes output_bytes, Seconds measured) {
  constexpr std::size_t kSlots = 64;
  if (typical_.empty()) typical_.resize(kSlots);
  Typical& typical = typical_[(output_bytes * 0x9E3779B97F4A7C15ull >> 40) % kSlots];
  if (typical.bytes != output_bytes) {
    typical = {output_bytes, measured};
  } else {
    typical.cost = measured < typical.cost ? measured : 0.95 * typical.cost + 0.05 * measured;
  }
  return typical.cost;
}

OpInfo& OpInfo::of(const c10::OperatorHandle& op) {
  // Schemas have stable addresses. A small direct-mapped cache in front of the table that owns the
  // entries.
  struct Slot {
    const void* key = nullptr;
    OpInfo* info = nullptr;
  };
  using Cache = std::array<Slot, 512>;
  thread_local Cache* cache __attribute__((tls_model("initial-exec"))) = nullptr;
  if (!cache) [[unlikely]] {
    thread_local std::unique_ptr<Cache> owner;
    owner = std::make_unique<Cache>();
    cache = owner.get();
  }
  const void* key = &op.schema();
  Slot& slot = (*cache)[(reinterpret_cast<std::uintptr_t>(key) >> 4) * 0x9E3779B97F4A7C15ull >> 55];
  if (slot.key == key) return *slot.info;

  static std::mutex mutex;
  static auto& table = *new std::unordered_map<const void*, std::unique_ptr<OpInfo>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = table[key];
  if (!entry) entry = std::make_unique<OpInfo>(op);
  slot = {key, entry.get()};
  return *entry;
}

}  // namespace coop
