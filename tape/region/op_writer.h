// SPDX-License-Identifier: BSD-3-Clause

// Logging an op of a region, in the same way for its forward and its replays.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include <remat/tape/op_call.h>
#include <remat/tape/op_log.h>
#include <remat/tape/region.h>
#include <remat/tape/storage_table.h>

namespace remat {

/// A region's view of a tensor that an op or a named call gets.
struct SeenTensor {
  const at::Tensor* tensor;  ///< In a replay, the shadow if there is one.
  Origin origin;
  int64_t moved = 0;  ///< Bytes by which it begins elsewhere than in the forward.
};
using SeenTensors = c10::SmallVector<SeenTensor, 6>;

/// Logs `call`: the op, `settings` under which it runs (0 for a plain view, which computes
/// nothing), its generator's position, and its arguments. `seen` has one entry for each of
/// call.tensors(). Notes in `storages` what the op gets. `words` is null if the op is not logged.
void write_op(OpWords* words, const OpCall& call, c10::ArrayRef<SeenTensor> seen, uint64_t settings,
              const Region& region, StorageTable& storages);

/// Logs a named call: its hash `call`, and its tensor arguments.
void write_call(OpWords& words, uint64_t call, c10::ArrayRef<SeenTensor> seen,
                const Region& region);

}  // namespace remat
