// SPDX-License-Identifier: BSD-3-Clause

// Permanent registrations of kernels, and the backend fallback on PrivateUse1, which runs ops that
// have a placeholder among their arguments.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

#include <cstdint>

#include <remat/placeholder/visibility.h>

namespace remat {

/// Returns a library for kernels of namespace `name` ("_" for fallbacks) at `key`. It lives as long
/// as the process, since destroying it would remove its kernels. `file` and `line` appear in
/// LibTorch's errors. Usable from any thread.
torch::Library& keep_library(const char* name, c10::DispatchKey key, const char* file,
                             uint32_t line);

/// Registers the fallback once for the process, permanently; later calls do nothing. Usable from
/// any thread. Throws NotImplementedError, naming the other fallback, if PrivateUse1 has one
/// already. The fallback throws NotImplementedError for an op without a placeholder argument.
///
/// Note [Composite kernels at PrivateUse1]: an op with a CompositeExplicitAutograd kernel would run
/// that kernel and never the fallback. Some of these kernels read memory (`copy_`) or call inner
/// ops, whose names errors would show. So for LibTorch's ops with such a kernel, the fallback is
/// registered by name as well. Ops that choose a device (`empty_like`, `_to_copy`) and
/// CompositeImplicitAutograd ops keep their composite kernels.
REMAT_API void install_private_use_fallback();

}  // namespace remat
