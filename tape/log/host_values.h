// SPDX-License-Identifier: BSD-3-Clause

// What logs say of numbers of the host, which LibTorch puts into tensors without an op.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <cstdint>

#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>
#include <remat/tape/outside_log.h>
#include <remat/tape/scope.h>
#include <remat/tape/storage_table.h>

#include "tensor_hash.h"

namespace remat {

/// What a log says of a tensor that LibTorch has made of numbers of the host without an op
/// (torch::tensor): another value in the replay is another number. Devices' are not looked at.
inline c10::IValue host_value(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.is_cpu() ? hash_of(tensor) : 0);
}

/// An op uses `tensor`, whose memory is Origin::given(): the first op that reads it writes its
/// bytes down, up to kMaxCompared. `words` is null where nothing is written down.
void note_given(const OpCall& call, size_t i, const at::Tensor& tensor, StorageTable& storages,
                OpWords* words);

/// Of the values, on the CPU up to kMaxCompared bytes of them, of a tensor whose memory is
/// Origin::given() and that no op has read. Never 0.
uint16_t given_hash(const at::Tensor& tensor);

/// The origin of what the op that is about to run makes. A mode may give memory without values
/// some, but not where LibTorch makes a tensor of numbers of the host, past all modes.
inline Origin origin_of_results(const OpInfo& op) {
  const bool is_of_mode = op.is_uninitialised() && Scope::modes_here() > 0 &&
                          !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python);
  return is_of_mode ? Origin::inside() : Origin::made_by(op);
}

/// True if there is a byte in its storage that is not 0.
bool has_values(const at::Tensor& tensor);

/// True if argument `i` is a tensor of this origin that shows numbers of the host: one of lift(),
/// or memory that the host may have filled since it was met, unless that is large. Such is what no
/// op has written (torch::tensor of a vector), and what is wrapped (from_numpy). Memory that nobody
/// has written is zeros, or what a mode has made of it, which may be on in one of forward and
/// replay only: zeros show nothing.
inline bool shows_host_value(const OpCall& call, size_t i, const at::Tensor& tensor, Origin origin,
                             const OutsideLog& outside) {
  if (call.info().is_lift()) return true;
  const auto is_wrapped = [&] {
    // A replay wraps it anew.
    if (origin.is_unknown())
      return tensor.has_storage() && !tensor.storage().allocator() && !tensor.requires_grad();
    if (!origin.is_outside()) return false;
    const OutsideStorage& storage = outside[origin.number()];
    return storage.is_foreign() && !storage.is_argument() && !storage.meta().requires_grad();
  };
  const bool may_be_filled = origin.is_unwritten() || is_wrapped();
  return C10_UNLIKELY(may_be_filled) && call.info().reads_data() && !call.writes_argument(i) &&
         tensor.is_cpu() && has_layout(tensor) && tensor.nbytes() <= OutsideStorage::kMaxCompared &&
         (!origin.is_unwritten() || has_values(tensor));
}

}  // namespace remat
