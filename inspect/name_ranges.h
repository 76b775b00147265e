// SPDX-License-Identifier: BSD-3-Clause

// Short text for lists of names that differ by a number.
#pragma once

#include <string>
#include <vector>

namespace remat {

/// Orders "layer.9" before "layer.10".
bool naturally_less(const std::string& a, const std::string& b);

/// A text such as "layer.0-2, layer.4". `names` must be in natural order.
std::string name_ranges(const std::vector<std::string>& names);

}  // namespace remat
