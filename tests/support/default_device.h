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
/// torch::nn alike, as after torch.set_default_device("cuda") in Python. A device argument is
/// respected, also if it is the CPU. Exceptions that stay on the CPU: from_blob, from_file,
/// torch::tensor({1, 2}), for which LibTorch passes a device, and pinned memory.
c10::Device default_device();

/// Returns the text with "on cuda:0" in place of "on cpu" if the default device is CUDA.
std::string on_default_device(std::string text);

/// Returns the size of the block that the default device's allocator uses for `bytes`. CUDA's small
/// blocks are multiples of 512 bytes.
int64_t block_bytes(int64_t bytes);

}  // namespace remat
