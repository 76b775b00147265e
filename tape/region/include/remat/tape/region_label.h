// SPDX-License-Identifier: BSD-3-Clause

// The name of a region in messages.
#pragma once

#include <string>

namespace remat {

/// `name` is CheckpointOptions::name, which may be empty.
inline std::string region_label(const std::string& name) {
  return name.empty() ? "region without a name" : "region '" + name + "'";
}

}  // namespace remat
