// SPDX-License-Identifier: BSD-3-Clause

// Measurement of a memory's speed.
#pragma once

#include <c10/core/Device.h>

#include <remat/offload/offload_memory.h>
#include <remat/policy/offload_terms.h>

namespace remat::detail {

/// Copies blocks of two sizes out of the device and back, several times each, and takes the
/// fastest. Throws the memory's errors, and if the memory has no room for a block.
OffloadPlace measured_place(OffloadMemory& memory, c10::Device device);

}  // namespace remat::detail
