// SPDX-License-Identifier: BSD-3-Clause

// Starting a region's replay when backward reaches the region's outputs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>

#include <remat/tape/region.h>

namespace remat {

/// Hooks each distinct node behind `outputs` that was made on this thread with sequence number
/// `first_sequence_nr` or later. The hook runs before the node, so the replay is done before any
/// backward inside the region begins. Outputs stay untouched, so that they may be written in place.
/// The nodes do not own the region.
void hook_heads(const std::shared_ptr<Region>& region, c10::ArrayRef<at::Tensor> outputs,
                uint64_t first_sequence_nr);

}  // namespace remat
