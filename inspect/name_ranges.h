// SPDX-License-Identifier: BSD-3-Clause

// Names that differ by a number, in few words.
#pragma once

#include <string>
#include <vector>

namespace remat {

/// "layer.9" before "layer.10".
bool naturally_less(const std::string& a, const std::string& b);

/// "layer.0-2, layer.4" for names in natural order.
std::string name_ranges(const std::vector<std::string>& names);

}  // namespace remat
