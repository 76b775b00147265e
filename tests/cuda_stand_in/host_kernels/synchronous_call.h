// SPDX-License-Identifier: BSD-3-Clause

// Ops that the host computes at once, without their CUDA kernel.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "host_computation.h"

namespace cuda_stand_in {

/// Waits for the current stream, as the CUDA kernels of such ops do to learn their results' sizes,
/// computes on the host, and replaces `arguments` at the end of `stack` by results on the device.
/// Arguments that the op writes are resized and written.
void call_synchronously(const c10::OperatorHandle& op, HostComputation compute,
                        const torch::jit::Stack& arguments, torch::jit::Stack* stack);

}  // namespace cuda_stand_in
