// SPDX-License-Identifier: BSD-3-Clause

// The device on which suites make tensors: the CPU, or CUDA with REMAT_TEST_DEVICE=cuda.
#pragma once

#include <c10/core/Device.h>

namespace remat {

/// Returns the device of tensors that a factory makes without a device argument.
///
/// With REMAT_TEST_DEVICE=cuda that is the current CUDA device, for torch::, at:: and modules of
/// torch::nn alike, as torch.set_default_device("cuda") has it in Python. A device that is given
/// stays, the CPU too. On the CPU stay: from_blob, from_file, torch::tensor({1, 2}), whose device
/// LibTorch makes explicit, and memory that is to be pinned.
c10::Device default_device();

}  // namespace remat
