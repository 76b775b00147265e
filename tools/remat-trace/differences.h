// SPDX-License-Identifier: BSD-3-Clause

// What differs, for people. Each returns whether anything does.
#pragma once

#include <ostream>

#include <remat/recording/recording.h>

namespace remat_trace {

bool print_replay_differences(const remat::Recording& recording, std::ostream& out);
bool print_difference(const remat::Recording& a, const remat::Recording& b, std::ostream& out);

}  // namespace remat_trace
