// SPDX-License-Identifier: BSD-3-Clause

// Memory that is freed after use and refilled before the next use: unsharded weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include <remat/engine/export.h>

namespace remat {

/// Note [Gathered memory]: FSDP frees a whole weight after use, and gathers it again into the same
/// storage before the next use. Neither step is an op of the region, or a write that changes the
/// weight's version. So a region ignores that such memory changes its size, and a replay that needs
/// such memory gathers it if it is still freed.
///
/// Refills freed memory. Called in backward; gathers as the memory's owner does before a backward.
/// Throws if gathering fails.
using MemoryGatherer = std::function<void()>;

/// From now on `gatherer` gathers the memory of `tensor`, from `shard` and the other ranks' shards.
/// Usable from any thread.
REMAT_API void note_gathered(const at::Tensor& tensor, const at::Tensor& shard,
                             MemoryGatherer gatherer);

/// Returns the gatherer of `storage`; null if none was noted.
REMAT_API MemoryGatherer gatherer_of(const c10::StorageImpl& storage);

/// Returns the version of the shard that `storage` is gathered from, because optimizers write the
/// shard. 0 if no shard was noted.
REMAT_API uint32_t shard_version(const c10::StorageImpl& storage);

}  // namespace remat
