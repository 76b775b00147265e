// SPDX-License-Identifier: BSD-3-Clause

// The state that the runtime keeps for each thread of the program: its device and its last error.
#pragma once

#include <cuda_runtime_api.h>

namespace cuda_stand_in {

struct LaunchConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

struct ThreadState {
  int device = 0;
  int covered = 0;  // above 0: somebody computes on the host what this thread launches
  cudaError_t last_error = cudaSuccess;
  LaunchConfiguration configuration;  // set between <<<...>>> and the launch
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};

ThreadState& this_thread();

// Returns `error` and keeps it for cudaGetLastError().
cudaError_t fail(cudaError_t error);

}  // namespace cuda_stand_in
