// SPDX-License-Identifier: BSD-3-Clause

// The warnings of a plan that do not depend on the device.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace remat {

/// Returns a callback that adds each warning to `warnings`. It leaves out the one about times,
/// which every plan for an accelerator begins with.
inline std::function<void(const std::string&)> collect_in(std::vector<std::string>& warnings) {
  return [&warnings](const std::string& line) {
    if (line.find("times are of the thread that launches") == std::string::npos)
      warnings.push_back(line);
  };
}

}  // namespace remat
