// SPDX-License-Identifier: BSD-3-Clause

// Replacing placeholders by meta tensors and back.
#include "meta_call.h"

#include <c10/core/Allocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>

#include <remat/placeholder/placeholder_impl.h>

#include "argument_tensors.h"

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
  for (const Argument& argument : arguments_) write_back(argument);
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
  for (const Argument& argument : arguments_)
    if (argument.original.is_same(tensor)) return argument.meta;
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      meta_storage_for(tensor), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  // Type promotion must give the same result as with the original.
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  arguments_.push_back({tensor, at::Tensor(std::move(impl))});
  return arguments_.back().meta;
}

c10::Storage MetaCall::meta_storage_for(const at::Tensor& tensor) {
  if (PlaceholderStorage::of(tensor)) return meta_storage_for(tensor.storage());
  return make_meta_storage(tensor.nbytes());
}

c10::Storage MetaCall::meta_storage_for(const c10::Storage& storage) {
  for (const StoragePair& pair : storages_)
    if (same(pair.original, storage)) return pair.meta;
  storages_.push_back({storage, make_meta_storage(storage.nbytes())});
  return storages_.back().meta;
}

const MetaCall::StoragePair* MetaCall::find_pair(const c10::Storage& meta) const {
  for (const StoragePair& pair : storages_)
    if (same(pair.meta, meta)) return &pair;
  return nullptr;
}

at::Tensor MetaCall::from_meta(const at::Tensor& meta) {
  if (!meta.defined() || !meta.is_meta()) return meta;
  for (const Argument& argument : arguments_)
    if (argument.meta.is_same(meta)) return argument.original;
  return make_placeholder_on(original_storage_for(meta.storage()), meta);
}

c10::Storage MetaCall::original_storage_for(const c10::Storage& meta) {
  if (const StoragePair* const pair = find_pair(meta)) return pair->original;
  storages_.push_back({make_dry_storage(meta.nbytes(), op_.schema().name()), meta});
  return storages_.back().original;
}

void MetaCall::write_back(const Argument& argument) {
  const PlaceholderStorage* const before = PlaceholderStorage::of(argument.original);
  if (!before) return;
  c10::TensorImpl& impl = *argument.original.unsafeGetTensorImpl();
  const c10::Storage storage = original_storage_for(argument.meta.storage());
  if (!same(storage, impl.unsafe_storage())) impl.set_storage_keep_dtype(storage);
  if (storage.nbytes() != argument.meta.storage().nbytes())
    storage.set_nbytes(argument.meta.storage().nbytes());
  if (!same_geometry(argument.original, argument.meta)) {
    impl.set_sizes_and_strides(argument.meta.sizes(), argument.meta.strides(),
                               argument.meta.storage_offset());
  }
}

}  // namespace remat
