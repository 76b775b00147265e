// SPDX-License-Identifier: BSD-3-Clause

// Groups names that differ only by numbers.
#pragma once

#include <string>

#include <remat/policy/export.h>

namespace remat::detail {

/// Replaces each run of digits by a star: "layer.12" becomes "layer.*".
REMAT_API std::string folded_label(const std::string& label);

}  // namespace remat::detail
