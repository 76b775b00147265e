// SPDX-License-Identifier: BSD-3-Clause

// Ops that scopes do not see, on tensors that are made on existing storages.
#include <remat/engine/storage_bytes.h>

#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/COW.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <cstdint>
#include <utility>

#include <remat/engine/unseen.h>
#include <remat/placeholder/placeholder_impl.h>

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>

namespace remat {
namespace {

constexpr uintptr_t kVectorBytes = 64;  // Width of the widest vector instructions.

at::Tensor as_bytes(const c10::Storage& storage) {
  return lay_out(storage, TensorLayout::flat(storage.nbytes(), c10::kByte));
}

/// Null if the storage has no memory. The access is unchecked, because data_ptr() of a
/// placeholder's or fake tensor's storage would throw.
const char* begin_of(const c10::Storage& storage) {
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  return impl ? static_cast<const char*>(impl->_mutable_data_ptr_no_checks().get()) : nullptr;
}

[[gnu::tls_model("initial-exec")]] thread_local bool keeps_part_now = false;

at::Tensor clone_unseen(const at::Tensor& tensor) {
  const UnseenBelowAutograd unseen;
  const c10::Storage& storage = tensor.storage();
  if (PlaceholderStorage::is(storage)) return tensor;
  TORCH_CHECK_NOT_IMPLEMENTED(
      storage.nbytes() == 0 || storage.device().is_meta() || storage.data() != nullptr,
      "[remat] storage: expected memory of which a copy can be kept, got a storage of ",
      storage.nbytes(), " bytes without memory, as tensors of Python classes of their own have.");
  return tensor.clone();
}

}  // namespace

at::Tensor clone_bytes(const c10::Storage& storage) {
  const at::Tensor bytes = as_bytes(storage);
  const size_t skipped = misalignment(storage);
  if (skipped == 0) return clone_unseen(bytes);
  const UnseenBelowAutograd unseen;
  const at::Tensor copy = as_bytes(empty_storage(storage.nbytes(), storage.device(), skipped));
  copy.copy_(bytes);
  return copy;
}

torch::autograd::SavedVariable keep_bytes(const c10::Storage& storage, HeldStorage& held) {
  return keep_part(as_bytes(storage), held);
}

bool keeps_part() {
  return keeps_part_now;
}

torch::autograd::SavedVariable keep_part(const at::Tensor& original, HeldStorage& held) {
  const c10::InferenceMode normal(false);  // Autograd cannot save inference tensors.
  const at::Tensor copy = clone_unseen(original);
  held = HeldStorage(copy);
  const auto ends = c10::make_scope_exit(
      [outer = std::exchange(keeps_part_now, true)] { keeps_part_now = outer; });
  return torch::autograd::SavedVariable(copy, /*is_output=*/false);
}

c10::Storage empty_storage(size_t size_bytes, c10::Device device, size_t skipped) {
  const UnseenBelowAutograd unseen;
  c10::Storage storage = at::empty({static_cast<int64_t>(skipped + size_bytes)},
                                   at::TensorOptions().dtype(c10::kByte).device(device))
                             .storage();
  if (skipped == 0) return storage;
  c10::DataPtr memory = storage.set_data_ptr({});
  char* const begin = static_cast<char*>(memory.get()) + skipped;
  const c10::DeleterFnPtr deleter = memory.get_deleter();
  return {c10::Storage::use_byte_size_t(), size_bytes,
          c10::DataPtr(begin, memory.release_context(), deleter, device), storage.allocator(),
          /*resizable=*/true};
}

c10::Storage shape_storage(size_t size_bytes, c10::Device device) {
  if (device.is_privateuseone()) return empty_storage(size_bytes, device);
  return {c10::Storage::use_byte_size_t(), size_bytes, c10::DataPtr(nullptr, device),
          /*allocator=*/nullptr, /*resizable=*/false};
}

bool has_memory(const c10::Storage& storage) noexcept {
  return begin_of(storage) != nullptr;
}

bool has_own_memory(const c10::Storage& storage) {
  return storage.data() && !c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
}

bool overlap(const c10::Storage& a, const c10::Storage& b) {
  const char* const first = begin_of(a);
  const char* const second = begin_of(b);
  return first && second && first < second + b.nbytes() && second < first + a.nbytes();
}

void copy_bytes(const c10::Storage& from, const c10::Storage& to) {
  const UnseenBelowAutograd unseen;
  TORCH_CHECK(from.nbytes() == to.nbytes(),
              "[remat] storage: expected a tensor to keep its memory, got one of ", from.nbytes(),
              " bytes that had ", to.nbytes(), ". ", kGiveMemoryBack);
  as_bytes(to).copy_(as_bytes(from));
}

void put_part(const c10::Storage& storage, const TensorLayout& part, const at::Tensor& value) {
  const UnseenBelowAutograd unseen;
  lay_out(storage, part).copy_(value);
}

c10::Storage copy_into_storage(const at::Tensor& value, const TensorLayout& layout,
                               size_t size_bytes) {
  const UnseenBelowAutograd unseen;
  TORCH_CHECK(!is_freed(value), "[remat] storage: ", kMemoryFreed, kGiveMemoryBack);
  c10::Storage storage = empty_storage(size_bytes, value.device());
  TensorLayout distinct = layout;  // One element in place of each expanded dimension.
  at::Tensor from = value;
  for (const auto d : c10::irange(layout.sizes.size())) {
    if (layout.strides[d] != 0 || layout.sizes[d] < 2) continue;
    distinct.sizes[d] = 1;
    from = from.narrow(static_cast<int64_t>(d), 0, 1);
  }
  lay_out(storage, distinct).copy_(from);
  return storage;
}

size_t misalignment(const c10::Storage& storage) {
  const bool may_have_memory = storage.device().is_cpu() && storage.nbytes() > 0;
  if (!may_have_memory || PlaceholderStorage::is(storage)) return 0;
  return reinterpret_cast<uintptr_t>(begin_of(storage)) % kVectorBytes;
}

uint8_t alignment_of(const at::Tensor& tensor) {
  const bool has_address = tensor.is_cpu() || tensor.is_cuda();
  const bool may_have_memory = has_layout(tensor) && has_address && tensor.numel() > 0;
  if (!may_have_memory || PlaceholderStorage::is(tensor.storage())) return kNoAlignment;
  const auto base = reinterpret_cast<uintptr_t>(begin_of(tensor.storage()));
  const auto offset = static_cast<uintptr_t>(tensor.storage_offset()) * tensor.itemsize();
  return base != 0 ? static_cast<uint8_t>((base + offset) % kVectorBytes) : kNoAlignment;
}

at::Tensor with_layout(const at::Tensor& value, const TensorLayout& layout, uint8_t alignment) {
  if (!has_layout(value)) return value;
  TensorLayout there = layout;
  there.offset = value.storage_offset();
  const uint8_t now = alignment_of(value);
  const bool is_possible =
      alignment != kNoAlignment && now != kNoAlignment && alignment % value.itemsize() == 0;
  const bool is_aligned = !is_possible || now == alignment;
  if (is_aligned && TensorLayout(value) == there) return value;
  // LibTorch's allocations begin at a multiple of kVectorBytes.
  there.offset = is_possible ? static_cast<int64_t>(alignment / value.itemsize()) : 0;
  return lay_out(copy_into_storage(value, there, there.bytes_spanned()), there);
}

at::Tensor on_whole_storage(const at::Tensor& value, const TensorLayout& layout,
                            size_t size_bytes) {
  if (value.storage().nbytes() == size_bytes && TensorLayout(value) == layout) return value;
  return lay_out(copy_into_storage(value, layout, size_bytes), layout);
}

// Copies the TensorImpl of `like`, because quantized and nested tensors have classes with more
// fields.
at::Tensor view_storage(const c10::Storage& storage, const at::Tensor& like) {
  if (PlaceholderStorage::is(storage) || PlaceholderStorage::is(like.storage()))
    return lay_out(storage, TensorLayout(like));
  const Unseen unseen;
  auto impl = like.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  impl->set_storage_keep_dtype(storage);
  return at::Tensor(std::move(impl));
}

}  // namespace remat
