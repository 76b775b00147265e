// SPDX-License-Identifier: BSD-3-Clause

// How messages call a region.
#pragma once

#include <string>

namespace remat::python {

/// As Region::label() has it.
inline std::string region_label(const std::string& name) {
  return name.empty() ? "region without a name" : "region '" + name + "'";
}

}  // namespace remat::python
