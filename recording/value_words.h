// SPDX-License-Identifier: BSD-3-Clause

// Words for the arguments of ops that are not tensors.
#pragma once

#include <string>
#include <vector>

#include <remat/recording/recording.h>

namespace remat::detail {

/// "[1, -2], 'mean', 0.5, true, none"
std::string words_of_values(const Recording& recording, const std::vector<RecordedValue>& values);

}  // namespace remat::detail
