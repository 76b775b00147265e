// SPDX-License-Identifier: BSD-3-Clause

// Mixing words.
#include "tensor_hash.h"

#include <algorithm>
#include <cstring>

#include <remat/placeholder/placeholder_impl.h>
#include <remat/tape/tensor_layout.h>

#include <ATen/ops/_to_copy.h>
#include <ATen/ops/contiguous.h>

#include "hash_mix.h"
#include "unseen.h"
#include "write_kind.h"

namespace remat {
namespace {

uint64_t hash_of_bytes(const char* bytes, size_t size) {
  uint64_t hash = size;
  size_t i = 0;
  for (uint64_t word = 0; i + sizeof(word) <= size; i += sizeof(word)) {
    std::memcpy(&word, bytes + i, sizeof(word));
    hash = hash_mix(hash, word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes + i, size - i);
  return hash_mix(hash, rest);
}

}  // namespace

uint64_t hash_of(const at::Tensor& tensor) {
  if (!has_layout(tensor) || tensor.numel() == 0 || tensor.is_quantized()) return 0;
  if (PlaceholderStorage::is(tensor.storage()) || is_freed(tensor) || tensor.is_meta()) return 0;
  const UnseenBelowAutograd unseen;
  at::Tensor data = tensor.resolve_conj().resolve_neg();
  if (!data.is_cpu()) data = at::_to_copy(data, data.options().device(c10::kCPU));
  data = data.contiguous();
  if (!data.storage().data()) return 0;
  return hash_of_bytes(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
}

uint64_t hash_of(c10::ArrayRef<at::Tensor> tensors) {
  uint64_t hash = tensors.size();
  for (const at::Tensor& tensor : tensors) {
    const bool has_values = tensor.defined() && tensor.is_cpu();
    hash = hash_mix(hash, has_values ? hash_of(tensor) : 0);
  }
  return hash;
}

void note_given(const OpCall& call, size_t i, const at::Tensor& tensor, StorageTable& storages,
                OpWords* words) {
  if (!call.info().reads_data()) return;
  const c10::Storage& storage = tensor.storage();
  const bool overwrites = call.writes_argument(i) && write_kind(call, i) != WriteKind::kReads;
  if (overwrites && tensor.nbytes() != storage.nbytes()) return;  // the rest may be read later
  if (!overwrites && !words) return;
  storages.enter(memory_of(tensor), Origin::inside());
  if (overwrites || !storage.device().is_cpu() || PlaceholderStorage::is(storage)) return;
  const auto* const bytes = static_cast<const char*>(storage.data());
  const size_t size = bytes ? std::min(storage.nbytes(), OutsideStorage::kMaxCompared) : 0;
  words->add_value(static_cast<int64_t>(hash_of_bytes(bytes, size)));
}

uint16_t given_hash(const at::Tensor& tensor) {
  uint64_t hash = 0;
  if (tensor.is_cpu()) {
    const UnseenBelowAutograd unseen;
    const auto most = static_cast<int64_t>(OutsideStorage::kMaxCompared / tensor.itemsize());
    hash = hash_of(tensor.numel() <= most ? tensor : tensor.flatten().narrow(0, 0, most));
  }
  return static_cast<uint16_t>(hash_mix(0, hash) >> 48U | 1U);
}

bool has_values(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const auto* const bytes = static_cast<const char*>(storage.data());
  return bytes && std::any_of(bytes, bytes + storage.nbytes(), [](char byte) { return byte != 0; });
}

}  // namespace remat
