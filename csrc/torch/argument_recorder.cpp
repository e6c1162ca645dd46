#include "torch/argument_recorder.h"

namespace coop {

// Operands that others may write to are recorded as copies of what they are now.
bool ArgumentRecorder::take_snapshots(const OpCall& call) {
  for (Storage* storage : call.operands()) {
    if (!scope_->data(*storage)) return false;  // it is lost, as the kernel will say
    if (Scope::shared_outside(*storage) && storage->bytes > kByValueLimit &&
        storage->bytes > scope_->engine().options().budget / 16) {
      return false;
    }
  }
  snapshots_.resize(call.operands().size(), nullptr);
  for (std::size_t i = 0; i < call.operands().size(); ++i) {
    Storage* storage = call.operands()[i];
    if (Scope::shared_outside(*storage) && storage->bytes > kByValueLimit) snapshots_[i] = scope_->snapshot(*storage);
  }
  return true;
}
void ArgumentRecorder::forget_snapshots() {
  for (Storage* storage : snapshots_) {
    if (storage) scope_->engine().reconsider(*storage);
  }
  snapshots_.clear();
}

void ArgumentRecorder::write_down(const OpCall& call, Storage* target, bool trains, const torch::jit::Stack& stack) {
  draft_.clear();
  edges_.clear();
  edge_of_.assign(call.operands().size(), kUndefined);
  in_place_ = InPlace::no;
  if (target) {
    in_place_ = fills_all(*target, stack) ? InPlace::from_scratch : InPlace::on_old;
    if (in_place_ == InPlace::on_old) {
      edge_of_[target->slot] = 0;
      edges_.push_back(target);  // replaced by the old version once there is one
    } else {
      edge_of_[target->slot] = kTarget;
    }
  }
  const std::size_t first = stack.size() - info_->arguments.size();
  for (std::size_t i = 0; i < info_->arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    switch (info_->arguments[i].kind) {
      case ArgumentInfo::Kind::tensor:
        if (value.isNone()) {
          draft_.none();
        } else if (!value.toTensor().defined() || (trains && info_->is_statistics(i))) {
          draft_.undefined();
        } else {
          const Place place = place_of(value.toTensor());
          draft_.tensor(value.toTensor(), place.edge, place.value, place.bytes);
        }
        break;
      case ArgumentInfo::Kind::tensor_list: {
        if (value.isNone()) {
          draft_.none();
          break;
        }
        const auto list = value.toListRef();
        draft_.list(list.size(), !value.isTensorList());
        for (const c10::IValue& element : list) {
          if (!element.isTensor() || !element.toTensor().defined()) {
            draft_.no_element();
          } else {
            const Place place = place_of(element.toTensor());
            draft_.element(element.toTensor(), place.edge, place.value, place.bytes);
          }
        }
        break;
      }
      case ArgumentInfo::Kind::generator:
        draft_.plain(value.isGenerator() ? c10::IValue(value.toGenerator().clone()) : value);
        break;
      case ArgumentInfo::Kind::tensor_lists:  // of collectives alone, which are not recorded
      case ArgumentInfo::Kind::other: draft_.plain(value); break;
    }
  }
}

ArgumentRecorder::Place ArgumentRecorder::place_of(const at::Tensor& tensor) {
  if (info_->shape_only) return {kNoData};
  Storage* storage = scope_->known_storage_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  if (!storage) return {kNoData};  // empty
  std::int32_t& edge = edge_of_[storage->slot];
  if (edge == kUndefined) {
    if (storage->source() && storage->bytes <= kByValueLimit) {
      edge = kByValue;
    } else {
      edge = static_cast<std::int32_t>(edges_.size());
      Storage* snapshot = snapshots_.empty() ? nullptr : snapshots_[storage->slot];
      edges_.push_back(snapshot ? snapshot : storage);
    }
  }
  if (edge == kByValue) return {kByValue, scope_->data(*storage), storage->bytes};
  return {edge};
}

// In place, writes every byte of the storage, reads none of it.
bool ArgumentRecorder::fills_all(const Storage& target, const torch::jit::Stack& stack) const {
  if (!info_->fills) return false;
  const at::Tensor& self = stack[stack.size() - info_->arguments.size()].toTensor();
  if (self.nbytes() != target.bytes || !self.is_non_overlapping_and_dense()) {
    return false;
  }
  bool read = false;
  for_each_tensor(*info_, stack, [&](std::size_t i, const at::Tensor& tensor) {
    if (i > 0 && tensor.has_storage() &&
        tensor.storage().unsafeGetStorageImpl() == self.storage().unsafeGetStorageImpl()) {
      read = true;
    }
  });
  return !read;
}

}  // namespace coop
