// SPDX-License-Identifier: BSD-3-Clause

// The generator that an op draws from, and its position.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

#include <remat/tape/op_call.h>

namespace remat {

/// Returns the generator among the op's arguments, else the default one of its device. Call it
/// before the op runs, for an op that may draw.
at::Generator generator_of(const OpCall& call);

/// A number that changes whenever the op would draw other numbers: it exposes a replay whose
/// function seeds a generator differently. 0 for devices other than CPU and CUDA.
uint64_t draw_position(const OpCall& call);

}  // namespace remat
