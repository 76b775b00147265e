// SPDX-License-Identifier: BSD-3-Clause

// The devices that random programs run on, and the CUDA stand-in where there is one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace remat::fuzz {

/// True if REMAT_FUZZ_DEVICE, or else REMAT_TEST_DEVICE, is "cuda".
bool on_cuda();

/// The device of tensors for which nothing else is specified.
at::Device main_device();

/// Makes the stand-in run streams in a random order that follows from the seed. A real device
/// ignores this.
void set_random_order(uint64_t seed);
void set_eager_order();
std::string order_of(uint64_t seed);

/// Waits until autograd's threads for devices have nothing to do. A backward that raises returns
/// before the thread of another device has ended its node.
void finish_backwards();

/// Waits for all devices, and returns the faults that the stand-in has found since the last call;
/// empty if there are none.
std::string device_faults();

void synchronize();

/// Returns cached memory to the device, so that addresses do not depend on earlier programs.
void forget_memory();

/// Replaces tensors on devices by copies on the host.
void to_host(std::vector<at::Tensor>& tensors);

}  // namespace remat::fuzz
