// SPDX-License-Identifier: BSD-3-Clause

// How fast a memory is.
#pragma once

#include <c10/core/Device.h>

#include <remat/offload/offload_memory.h>
#include <remat/policy/offload_terms.h>

namespace remat::detail {

/// Copies pieces of two sizes out of the device and back, some times each; takes the fastest.
/// Throws what the memory throws, and if it has no room for a piece.
OffloadPlace measured_place(OffloadMemory& memory, c10::Device device);

}  // namespace remat::detail
