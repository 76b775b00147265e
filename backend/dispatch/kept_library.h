// SPDX-License-Identifier: BSD-3-Clause

// Registrations that last.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

#include <cstdint>

namespace remat {

/// A library for kernels of namespace `name` ("_" for fallbacks) at `key` that lives as long as the
/// process: one that dies takes its kernels with it. `file` and `line` appear in LibTorch's errors.
/// Any thread.
torch::Library& keep_library(const char* name, c10::DispatchKey key, const char* file,
                             uint32_t line);

}  // namespace remat
