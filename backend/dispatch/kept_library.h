// SPDX-License-Identifier: BSD-3-Clause

// Permanent registrations of kernels.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

#include <cstdint>

namespace remat {

/// Returns a library for kernels of namespace `name` ("_" for fallbacks) at `key`. It lives as long
/// as the process, since destroying it would remove its kernels. `file` and `line` appear in
/// LibTorch's errors. Usable from any thread.
torch::Library& keep_library(const char* name, c10::DispatchKey key, const char* file,
                             uint32_t line);

}  // namespace remat
