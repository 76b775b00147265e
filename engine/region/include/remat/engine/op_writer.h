// SPDX-License-Identifier: BSD-3-Clause

// Logging an op of a region, in the same way for its forward and its replays.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

#include <remat/engine/op_call.h>
#include <remat/engine/op_log.h>
#include <remat/engine/outside_log.h>
#include <remat/engine/region.h>
#include <remat/engine/scope.h>
#include <remat/engine/storage_table.h>
#include <remat/engine/tensor_hash.h>

namespace remat {

/// A tensor that an op or a named call gets, as its region sees the tensor.
struct SeenTensor {
  const at::Tensor* tensor;  ///< In a replay, the shadow if there is one.
  Origin origin;
  int64_t moved = 0;  ///< The forward's tensor began this number of bytes later in its memory.
};
using SeenTensors = c10::SmallVector<SeenTensor, 6>;

/// Logs `call`: the op, `settings` under which it runs (0 for OpInfo::is_plain_view(), which
/// computes nothing), its generator's position, and its arguments. `seen` has one entry for each of
/// call.tensors(). Notes given memory in `storages`. `words` is null if the op is not logged.
void write_op(OpWords* words, const OpCall& call, c10::ArrayRef<SeenTensor> seen, uint64_t settings,
              const Region& region, StorageTable& storages);

/// Logs a named call: its hash `call`, and its tensor arguments.
void write_call(OpWords& words, uint64_t call, c10::ArrayRef<SeenTensor> seen,
                const Region& region);

/// The number to log for a tensor that LibTorch has made of host numbers without an op
/// (torch::tensor): depends on the tensor's values; 0 for a device tensor, which is not read.
inline c10::IValue host_value(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.is_cpu() ? hash_of(tensor) : 0);
}

/// Call it for `tensor`, argument `i` of `call`, on Origin::given() memory. The first op that reads
/// the tensor logs its bytes, up to kMaxCompared. `words` is null if the op is not logged.
void note_given(const OpCall& call, size_t i, const at::Tensor& tensor, StorageTable& storages,
                OpWords* words);

/// Hash of the values (up to kMaxCompared bytes, on the CPU only) of a tensor whose memory is
/// Origin::given() and that no op has read. Never 0.
uint16_t given_hash(const at::Tensor& tensor);

/// The origin of the results of the op that is about to run. Under a dispatch mode uninitialised
/// memory counts as written, because the mode may fill it. While LibTorch makes a tensor of numbers
/// it excludes dispatch modes, so the tensor's memory counts as unwritten.
inline Origin origin_of_results(const OpInfo& op) {
  const bool is_of_mode = op.is_uninitialised() && Scope::modes_here() > 0 &&
                          !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python);
  return is_of_mode ? Origin::inside() : Origin::made_by(op);
}

/// True if any byte in the storage of `tensor` is not 0.
bool has_values(const at::Tensor& tensor);

/// True if argument `i`, a tensor of this origin, has numbers from the host: `call` is lift(), or
/// the host may have filled the tensor's memory (up to kMaxCompared bytes) since the region met it.
/// The host may fill memory that no op has written (torch::tensor of a vector), and memory that it
/// has allocated itself (from_numpy). Unwritten memory that is all zeros does not count, because a
/// dispatch mode that is active in only one of forward and replay may fill it.
inline bool shows_host_value(const OpCall& call, size_t i, const at::Tensor& tensor, Origin origin,
                             const OutsideLog& outside) {
  if (call.info().is_lift()) return true;
  const auto is_wrapped = [&] {
    // In a replay the origin is unknown, because the function wraps the memory anew.
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
