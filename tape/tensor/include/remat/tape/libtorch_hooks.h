// SPDX-License-Identifier: BSD-3-Clause

// What LibTorch asks of its tensors' variables.
#pragma once

#include <ATen/core/VariableHooksInterface.h>

#include <remat/tape/export.h>

namespace remat {

/// LibTorch's own VariableHooks, which tell no scope: see Note [Data hooks]. From any thread.
REMAT_API const at::impl::VariableHooksInterface& libtorch_variable_hooks();

}  // namespace remat
