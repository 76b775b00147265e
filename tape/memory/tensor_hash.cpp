// SPDX-License-Identifier: BSD-3-Clause

// Mixing words.
#include "tensor_hash.h"

#include <cstring>

#include <remat/placeholder/placeholder_impl.h>
#include <remat/tape/tensor_layout.h>

#include <ATen/ops/_to_copy.h>
#include <ATen/ops/contiguous.h>

#include "hash_mix.h"
#include "unseen.h"

namespace remat {

uint64_t hash_of_bytes(const void* bytes, size_t size) {
  const auto* const from = static_cast<const char*>(bytes);
  uint64_t hash = size;
  size_t i = 0;
  for (uint64_t word = 0; i + sizeof(word) <= size; i += sizeof(word)) {
    std::memcpy(&word, from + i, sizeof(word));
    hash = hash_mix(hash, word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, from + i, size - i);
  return hash_mix(hash, rest);
}

uint64_t hash_of(const at::Tensor& tensor) {
  if (!has_layout(tensor) || tensor.numel() == 0 || tensor.is_quantized()) return 0;
  if (PlaceholderStorage::is(tensor.storage()) || is_freed(tensor) || tensor.is_meta()) return 0;
  const UnseenBelowAutograd unseen;
  at::Tensor data = tensor.resolve_conj().resolve_neg();
  if (!data.is_cpu()) data = at::_to_copy(data, data.options().device(c10::kCPU));
  data = data.contiguous();
  if (!data.storage().data()) return 0;
  return hash_of_bytes(data.const_data_ptr(), data.nbytes());
}

uint64_t hash_of(c10::ArrayRef<at::Tensor> tensors) {
  uint64_t hash = tensors.size();
  for (const at::Tensor& tensor : tensors) {
    const bool has_values = tensor.defined() && tensor.is_cpu();
    hash = hash_mix(hash, has_values ? hash_of(tensor) : 0);
  }
  return hash;
}

}  // namespace remat
