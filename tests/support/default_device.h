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
/// torch::nn alike, as torch.set_default_device("cuda") does in Python. A device argument is
/// respected, the CPU's too. Exceptions that stay on the CPU: from_blob, from_file,
/// torch::tensor({1, 2}), for which LibTorch passes a device, and pinned memory.
c10::Device default_device();

/// Adapts a text about tensors on the CPU to the default device.
std::string on_default_device(std::string text);

/// Returns the size of the block that the default device's allocator uses for `bytes`. CUDA's small
/// blocks are multiples of 512 bytes.
int64_t block_bytes(int64_t bytes);

}  // namespace remat
