// SPDX-License-Identifier: BSD-3-Clause

// Replaces placeholders by meta tensors, and meta results by placeholders.
#include "meta_call.h"

#include <c10/core/Allocator.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>

#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

c10::Storage make_meta_storage(size_t size_bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), size_bytes, c10::GetAllocator(c10::DeviceType::Meta),
      /*resizable=*/true));
}

bool same(const c10::Storage& a, const c10::Storage& b) {
  return a.unsafeGetStorageImpl() == b.unsafeGetStorageImpl();
}

bool is_number(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number() &&
         !is_placeholder(tensor);
}

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset();
}

}  // namespace

void MetaCall::replace_arguments(Numbers numbers) {
  const auto replace = [&](const at::Tensor& tensor) {
    return numbers == Numbers::kKeep && is_number(tensor) ? tensor : to_meta(tensor);
  };
  const size_t count = op_.schema().arguments().size();
  for (size_t i = stack_.size() - count; i < stack_.size(); ++i) {
    if (stack_[i].isStorage()) {
      stack_[i] = meta_storage_for(stack_[i].toStorage());
    } else {
      change_tensors(stack_[i], replace);
    }
  }
}

void MetaCall::replace_results() {
  for (const auto& [original, meta] : arguments_) write_back(original, meta);
  const size_t count = op_.schema().returns().size();
  for (size_t i = stack_.size() - count; i < stack_.size(); ++i)
    change_tensors(stack_[i], [this](const at::Tensor& meta) { return from_meta(meta); });
}

bool MetaCall::made_storage() const {
  const size_t count = op_.schema().returns().size();
  bool made = false;
  for (size_t i = stack_.size() - count; i < stack_.size(); ++i) {
    visit_tensors(stack_[i], [&](const at::Tensor& result) {
      made |= result.defined() && !find_pair(result.storage());
    });
  }
  return made;
}

at::Tensor MetaCall::to_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  for (const auto& [original, meta] : arguments_)
    if (original.is_same(tensor)) return meta;
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      meta_storage_for(tensor), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  // Type promotion treats a wrapped number differently from other tensors.
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  arguments_.push_back({tensor, at::Tensor(std::move(impl))});
  return arguments_.back().second;
}

c10::Storage MetaCall::meta_storage_for(const at::Tensor& tensor) {
  if (PlaceholderStorage::of(tensor)) return meta_storage_for(tensor.storage());
  return make_meta_storage(tensor.nbytes());
}

c10::Storage MetaCall::meta_storage_for(const c10::Storage& storage) {
  for (const auto& [original, meta] : storages_)
    if (same(original, storage)) return meta;
  return storages_.emplace_back(storage, make_meta_storage(storage.nbytes())).second;
}

const MetaCall::StoragePair* MetaCall::find_pair(const c10::Storage& meta) const {
  for (const StoragePair& pair : storages_)
    if (same(pair.second, meta)) return &pair;
  return nullptr;
}

at::Tensor MetaCall::from_meta(const at::Tensor& meta) {
  if (!meta.defined() || !meta.is_meta()) return meta;
  for (const auto& [original, replaced] : arguments_)
    if (replaced.is_same(meta)) return original;
  return make_placeholder_on(original_storage_for(meta.storage()), meta);
}

c10::Storage MetaCall::original_storage_for(const c10::Storage& meta) {
  if (const StoragePair* const pair = find_pair(meta)) return pair->first;
  return storages_.emplace_back(make_dry_storage(meta.nbytes(), op_.schema().name()), meta).first;
}

void MetaCall::write_back(const at::Tensor& original, const at::Tensor& meta) {
  const PlaceholderStorage* const before = PlaceholderStorage::of(original);
  if (!before) return;
  c10::TensorImpl& impl = *original.unsafeGetTensorImpl();
  const c10::Storage storage = original_storage_for(meta.storage());
  if (!same(storage, impl.unsafe_storage())) impl.set_storage_keep_dtype(storage);
  if (storage.nbytes() != meta.storage().nbytes()) storage.set_nbytes(meta.storage().nbytes());
  if (!same_geometry(original, meta)) {
    impl.set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  }
}

bool run_composite(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  using c10::DispatchKey;
  for (const DispatchKey key :
       {DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeExplicitAutogradNonFunctional,
        DispatchKey::CompositeImplicitAutograd}) {
    if (!op.hasKernelForDispatchKey(key)) continue;
    op.callBoxedForDispatchKey(key, stack);
    return true;
  }
  return false;
}

}  // namespace remat
