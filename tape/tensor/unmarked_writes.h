// SPDX-License-Identifier: BSD-3-Clause

// Arguments that LibTorch's own ops write without an alias mark in their schemas.
#pragma once

#include <cstdint>
#include <string_view>

namespace remat {

/// Bit masks; bit i stands for argument i.
struct UnmarkedWrites {
  uint64_t always = 0;
  uint64_t in_training = 0;  ///< Written if the argument "training" is true or absent.
};

/// Unmarked writes of all overloads of the op `op`.
UnmarkedWrites unmarked_writes(std::string_view op);

/// True for the op that wraps the result of a functional collective in a tensor subclass.
bool wraps_collective(std::string_view op);

/// True for collectives, sends, receives and the ops that wait for them.
bool is_communication(std::string_view op);

}  // namespace remat
