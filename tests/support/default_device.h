// SPDX-License-Identifier: BSD-3-Clause

// The device on which suites make tensors: the CPU, or CUDA with REMAT_TEST_DEVICE=cuda.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace remat {

/// Returns the device of tensors that a factory makes without a device argument.
///
/// With REMAT_TEST_DEVICE=cuda that is the current CUDA device, for torch::, at:: and modules of
/// torch::nn alike, as torch.set_default_device("cuda") has it in Python. A device that is given
/// stays, the CPU too. On the CPU stay: from_blob, from_file, torch::tensor({1, 2}), whose device
/// LibTorch makes explicit, and memory that is to be pinned.
c10::Device default_device();

/// Returns a text that says of tensors that they are on the CPU, as it is for the default device.
std::string on_default_device(std::string text);

/// Returns the bytes of the block that the default device's allocator gives for `bytes`. CUDA's
/// small blocks are multiples of 512 bytes.
int64_t block_bytes(int64_t bytes);

}  // namespace remat
