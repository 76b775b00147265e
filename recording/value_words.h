// SPDX-License-Identifier: BSD-3-Clause

// Arguments and results of ops as text.
#pragma once

#include <string>
#include <vector>

#include <remat/recording/recording.h>

namespace remat::detail {

/// A text such as "float32 [2, 3], none".
std::string words_of_tensors(const Recording& recording,
                             const std::vector<RecordedTensor>& tensors);

/// A text such as "[1, -2], 'mean', 0.5, true, none".
std::string words_of_values(const Recording& recording, const std::vector<RecordedValue>& values);

}  // namespace remat::detail
