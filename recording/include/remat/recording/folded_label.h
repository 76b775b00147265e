// SPDX-License-Identifier: BSD-3-Clause

// What names that differ by numbers have in common.
#pragma once

#include <string>

#include <remat/policy/export.h>

namespace remat::detail {

/// With each run of digits as a star: "layer.*" of "layer.12".
REMAT_API std::string folded_label(const std::string& label);

}  // namespace remat::detail
