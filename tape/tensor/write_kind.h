// SPDX-License-Identifier: BSD-3-Clause

// How an op writes the bytes of an argument.
#pragma once

#include <cstddef>
#include <cstdint>

#include <remat/tape/op_call.h>

namespace remat {

enum class WriteKind : uint8_t {
  kReads,  ///< Reads them too, or unknown.
  kWhole,  ///< Writes all of them and reads none.
  kPart,   ///< Writes some of them, always the same ones, and reads none.
};

/// How `call` writes argument `i`. Call it before the op runs.
WriteKind write_kind(const OpCall& call, size_t i);

}  // namespace remat
