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

/// The device of tensors that nothing says otherwise about.
at::Device main_device();

/// The stand-in runs the work of streams in an order that follows from the seed. A real device
/// does as it likes.
void set_random_order(uint64_t seed);
void set_eager_order();
std::string order_of(uint64_t seed);

/// Waits until autograd's threads for devices have nothing to do. A backward that raises returns
/// before the thread of another device has ended its node.
void finish_backwards();

/// Waits for all devices, and returns what the stand-in has found wrong since the last call: empty
/// if nothing.
std::string device_faults();

/// Waits for all devices.
void synchronize();

/// Gives the memory that no tensor has back to the device, so that what lies where says nothing of
/// earlier programs.
void forget_memory();

/// Puts copies on the host in the place of tensors on devices.
void to_host(std::vector<at::Tensor>& tensors);

}  // namespace remat::fuzz
