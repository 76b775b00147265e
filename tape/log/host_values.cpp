// SPDX-License-Identifier: BSD-3-Clause

// Reading bytes that the host may have written.
#include "host_values.h"

#include <algorithm>

#include <remat/placeholder/placeholder_impl.h>
#include <remat/tape/tensor_layout.h>

#include "hash_mix.h"
#include "unseen.h"
#include "write_kind.h"

namespace remat {

void note_given(const OpCall& call, size_t i, const at::Tensor& tensor, StorageTable& storages,
                OpWords* words) {
  if (!call.info().reads_data()) return;
  const c10::Storage& storage = tensor.storage();
  const bool overwrites = call.writes_argument(i) && write_kind(call, i) != WriteKind::kReads;
  if (overwrites && tensor.nbytes() != storage.nbytes()) return;  // The rest may be read later.
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
