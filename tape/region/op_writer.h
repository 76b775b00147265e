// SPDX-License-Identifier: BSD-3-Clause

// Writing an op of a region down: its forward and its replays do so alike.
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

/// What a region knows of a tensor that an op or a named call is given.
struct SeenTensor {
  const at::Tensor* tensor;  ///< In a replay, the shadow if it has one.
  Origin origin;
  int64_t moved = 0;  ///< By how many bytes it begins elsewhere in its memory than in the forward.
};
using SeenTensors = c10::SmallVector<SeenTensor, 6>;

/// Writes `call` down: which op, the settings that it runs under (0 of a plain view, which computes
/// nothing), where its generator stands, and its arguments. `seen`: its tensors, one for each of
/// call.tensors(). Notes in `storages` what the op is given. `words` is null where nothing is to be
/// written down.
void write_op(OpWords* words, const OpCall& call, c10::ArrayRef<SeenTensor> seen, uint64_t settings,
              const Region& region, StorageTable& storages);

/// Writes a named call down: its hash, and the tensors among its arguments.
void write_call(OpWords& words, uint64_t call, c10::ArrayRef<SeenTensor> seen,
                const Region& region);

}  // namespace remat
