// SPDX-License-Identifier: BSD-3-Clause

// How messages call a region.
#pragma once

#include <string>

namespace remat {

/// `name`: that of CheckpointOptions, which may be empty.
inline std::string region_label(const std::string& name) {
  return name.empty() ? "region without a name" : "region '" + name + "'";
}

}  // namespace remat
