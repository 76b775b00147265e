// SPDX-License-Identifier: BSD-3-Clause

// How ops write their arguments, with and without a mark in their schemas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <remat/engine/op_call.h>

namespace remat {

enum class WriteKind : uint8_t {
  kReads,  ///< The op reads elements of the argument, too, or the kind of write is unknown.
  kWhole,  ///< The op writes all elements and reads none.
  kPart,   ///< The op writes some elements, always the same ones, and reads none.
};

/// How `call` writes argument `i`. Call it before the op runs.
WriteKind write_kind(const OpCall& call, size_t i);

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
