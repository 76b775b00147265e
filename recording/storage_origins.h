// SPDX-License-Identifier: BSD-3-Clause

// Which storage each argument of an op has, and which op made or wrote it last, whatever addresses
// a run has got.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/recording/replay_links.h>

namespace remat::detail {

struct StorageOrigin {
  uint64_t storage = 0;  ///< A number that no other storage of the recording has; 0: no storage.
  size_t maker = kNoOp;  ///< The innermost op that last made or wrote it, in Recording::ops; kNoOp:
                         ///< none that is in the recording.
};

/// By places in Recording::ops, for each of OpEvent::arguments.
std::vector<std::vector<StorageOrigin>> argument_origins(const Recording& recording);

/// "add_" of "aten::add_.Tensor"
std::string_view base_name(std::string_view op);

/// Returns what it was given: "aten::add_.Tensor", "aten::mul.out".
bool writes_in_place(std::string_view op);

}  // namespace remat::detail
