// SPDX-License-Identifier: BSD-3-Clause

// LibTorch's own table of VariableHooks.
#pragma once

#include <ATen/core/VariableHooksInterface.h>

#include <remat/tape/export.h>

namespace remat {

/// LibTorch's own VariableHooks, which notify no scope: see Note [Data hooks]. Usable from any
/// thread.
REMAT_API const at::impl::VariableHooksInterface& libtorch_variable_hooks();

}  // namespace remat
