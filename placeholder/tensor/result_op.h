// SPDX-License-Identifier: BSD-3-Clause

// Running ops on placeholders of results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <remat/placeholder/placeholder.h>

namespace remat {

/// Runs views and metadata ops; for others throws as throw_placeholder_access(op, info) does.
void run_result_op(const c10::OperatorHandle& op, const PlaceholderInfo& info,
                   torch::jit::Stack& stack);

}  // namespace remat
