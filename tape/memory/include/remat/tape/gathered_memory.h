// SPDX-License-Identifier: BSD-3-Clause

// Memory that is freed after its use and filled again before the next one: unsharded weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include <remat/tape/export.h>

namespace remat {

/// Note [Gathered memory]: FSDP frees a whole weight when it has been used, and gathers it again
/// into the same storage before it is used next. No op of a region does either, and neither is a
/// write: the weight has the version that it had. So a region does not mind that such memory
/// changes its size, and a replay that needs it has it gathered if nobody else has done that
/// before.
///
/// Gives memory its bytes back.
class REMAT_API MemoryGatherer {
 public:
  virtual ~MemoryGatherer() = default;

  /// In backward, as the owner of the memory does it before a backward. Throws where it cannot.
  virtual void gather() = 0;
};

/// From now on the memory of `tensor` is gathered by `gatherer`, from `shard` and those of other
/// ranks. From any thread.
REMAT_API void note_gathered(const at::Tensor& tensor, const at::Tensor& shard,
                             std::shared_ptr<MemoryGatherer> gatherer);

/// Null if nobody has noted `storage`.
REMAT_API std::shared_ptr<MemoryGatherer> gatherer_of(const c10::StorageImpl& storage);

/// The version of the shard that `storage` is gathered from: an optimizer writes that one. 0 if
/// nobody has noted the storage.
REMAT_API uint32_t shard_version(const c10::StorageImpl& storage);

}  // namespace remat
