// SPDX-License-Identifier: BSD-3-Clause

// Decides which ops get a host kernel, and of which kind, by the schema where possible.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace cuda_stand_in {

enum class Kind {
  kNone,         // the CUDA kernel alone is right: it launches nothing, or allocates only
  kQueued,       // the CUDA kernel allocates the results; the host computes in the stream's turn
  kSynchronous,  // the host waits for the stream, computes, and copies the results to the device
};

Kind kind_of(const c10::OperatorHandle& op);

/// True if `op` draws from a generator.
bool is_random(const c10::OperatorHandle& op);

}  // namespace cuda_stand_in
