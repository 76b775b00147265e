// SPDX-License-Identifier: BSD-3-Clause

// The generator that an op draws from, and where it is.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

#include <remat/tape/op_call.h>

namespace remat {

/// Of an op that may draw: the generator among its arguments, else the default one of its device.
/// Only before the op runs.
at::Generator generator_of(const OpCall& call);

/// A number that differs where the op would draw other numbers: a replay whose function seeds a
/// generator otherwise is found out by it. 0 for devices other than CPU and CUDA.
uint64_t draw_position(const OpCall& call);

}  // namespace remat
