// SPDX-License-Identifier: BSD-3-Clause

// Restoring a saved tensor on the forward's memory.
#include <remat/engine/forward_memory.h>

#include <c10/util/Exception.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <remat/engine/held_storage.h>
#include <remat/engine/op_call.h>
#include <remat/engine/tensor_hash.h>
#include <remat/engine/tensor_layout.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

/// Compares the elements bit by bit; both tensors are on the CPU.
bool are_same(const at::Tensor& first, const at::Tensor& second) {
  const bool lie_alike = first.unsafeGetTensorImpl()->is_non_overlapping_and_dense() &&
                         first.strides() == second.strides() &&
                         first.is_conj() == second.is_conj() && first.is_neg() == second.is_neg() &&
                         first.nbytes() == second.nbytes();
  if (!lie_alike) return hash_of(first) == hash_of(second);
  return first.nbytes() == 0 ||  // An empty tensor has no address.
         std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()) == 0;
}

/// True if the tensor has the strides that c10::contiguous_strides() gives to its sizes.
bool has_default_strides(const at::Tensor& tensor) {
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != expected) return false;
    expected *= std::max<int64_t>(sizes[d], 1);
  }
  return true;
}

}  // namespace

ForwardMemory::ForwardMemory(const at::Tensor& tensor, bool is_hooked)
    : storage_(weak_storage(tensor)),
      offset_(tensor.storage_offset()),
      conjugated_(tensor.is_conj()),
      negated_(tensor.is_neg()),
      is_hooked_(is_hooked) {
  if (has_default_strides(tensor)) return;
  const c10::IntArrayRef strides = tensor.strides();
  auto copy = std::make_unique<int64_t[]>(strides.size());
  std::copy(strides.begin(), strides.end(), copy.get());
  strides_ = std::move(copy);
}

at::Tensor ForwardMemory::lock(const TensorMeta& meta, const at::Tensor& value,
                               c10::function_ref<std::string()> where) const {
  auto locked = storage_.lock();
  if (!locked) return {};
  const c10::Storage storage(std::move(locked));
  if (PlaceholderStorage::is(storage)) return {};
  TensorLayout layout;
  layout.sizes.append(meta.sizes().begin(), meta.sizes().end());
  if (strides_) {
    layout.strides.append(strides_.get(), strides_.get() + layout.sizes.size());
  } else {
    const auto strides = c10::contiguous_strides(meta.sizes());
    layout.strides.append(strides.begin(), strides.end());
  }
  layout.offset = offset_;
  layout.dtype = meta.dtype();
  layout.conjugated = conjugated_;
  layout.negated = negated_;
  if (storage.nbytes() < layout.bytes_spanned()) return {};
  const at::Tensor saved = lay_out(storage, layout);
  const bool is_compared = value.defined() && has_layout(value) && saved.is_cpu() &&
                           memory_of(value) != memory_of(saved) &&
                           !PlaceholderStorage::is(value.storage());
  TORCH_CHECK(!is_compared || are_same(saved, value), where(), " (", meta.str(),
              "): expected memory that somebody else has, too, as the forward saved it, got other "
              "values: it was written without a new version (numpy, a raw pointer, `.data`, an op "
              "that does not tell autograd), or a custom function has returned it as a gradient "
              "and autograd has added to it. Write it with ops, write a clone, or return a clone.");
  return saved;
}

}  // namespace remat
