// SPDX-License-Identifier: BSD-3-Clause

// Identifies the storage of each argument of an op, and the op that last made or wrote it,
// independently of the run's addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/recording/replay_links.h>

namespace remat::detail {

struct StorageOrigin {
  uint64_t storage = 0;  ///< Unique in the recording; 0: no storage.
  /// The innermost op that last made or wrote it, as an index into Recording::ops; kNoOp if no
  /// recorded op did.
  size_t maker = kNoOp;
};

/// Origins by index into Recording::ops, one for each of OpEvent::arguments.
std::vector<std::vector<StorageOrigin>> argument_origins(const Recording& recording);

/// The name without namespace and overload: "add_" for "aten::add_.Tensor".
std::string_view base_name(std::string_view op);

/// True for ops that return an argument that they wrote: "aten::add_.Tensor", "aten::mul.out".
bool writes_in_place(std::string_view op);

}  // namespace remat::detail
