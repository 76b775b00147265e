// SPDX-License-Identifier: BSD-3-Clause

// Random numbers of the host that follow the CUDA generator's state.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace cuda_stand_in {

/// True for an argument that takes a generator.
bool is_generator(const c10::Argument& argument);

/// Returns a new CPU generator whose seed is a function of the seed and the offset of the CUDA
/// generator that the call draws from: the one in `arguments`, else the current device's. The same
/// state of the CUDA generator gives the same numbers, and the CUDA kernel moves the offset on.
at::Generator host_generator(const torch::jit::Stack& arguments);

}  // namespace cuda_stand_in
