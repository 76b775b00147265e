// SPDX-License-Identifier: BSD-3-Clause

// Numbers, columns and lists of names in reports.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace remat {

/// Texts such as "640 B" and "1.25 KiB".
std::string bytes_str(size_t bytes);

/// Texts such as "1 storage" and "3 storages".
std::string count_str(size_t count, const std::string& what);

/// Formats rows of cells, each column as wide as its widest cell; the first column is
/// right-aligned. Each line begins with a line feed and `indent` spaces and has no trailing spaces.
std::string columns(const std::vector<std::vector<std::string>>& rows, size_t indent);

/// Orders "layer.9" before "layer.10".
bool naturally_less(const std::string& a, const std::string& b);

/// A text such as "layer.0-2, layer.4". `names` must be in natural order.
std::string name_ranges(const std::vector<std::string>& names);

}  // namespace remat
