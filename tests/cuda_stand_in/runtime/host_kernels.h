// SPDX-License-Identifier: BSD-3-Clause

// Loads the library of host kernels, which compute right numbers.
#pragma once

namespace cuda_stand_in {

// Loads the library that CUDA_STAND_IN_KERNELS names, once LibTorch has registered its kernels, and
// lets it install itself. Must be called without the lock of the runtime. Does nothing if the
// variable is not set.
void load_host_kernels();

}  // namespace cuda_stand_in
