// SPDX-License-Identifier: BSD-3-Clause

// What LibTorch's own ops write without saying so in their schemas.
#pragma once

#include <cstdint>
#include <string_view>

namespace remat {

/// Bit i: argument i.
struct UnmarkedWrites {
  uint64_t always = 0;
  uint64_t in_training = 0;  ///< If the op's argument "training" is true, or it has none.
};

/// Of the op of that name, all overloads.
UnmarkedWrites unmarked_writes(std::string_view op);

/// True for the op that wraps the result of a functional collective in a tensor subclass.
bool wraps_collective(std::string_view op);

/// True for collectives, sends, receives and what waits for them.
bool is_communication(std::string_view op);

}  // namespace remat
