// SPDX-License-Identifier: BSD-3-Clause

// What an op does with the bytes of an argument that it writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include <remat/tape/op_call.h>

namespace remat {

enum class WriteKind : uint8_t {
  kReads,  ///< It reads them too; or nobody knows.
  kWhole,  ///< It writes all of them and reads none.
  kPart,   ///< It writes some of them, always the same ones, and reads none.
};

/// Of argument `i`, which `call` writes. Before the op runs.
WriteKind write_kind(const OpCall& call, size_t i);

}  // namespace remat
