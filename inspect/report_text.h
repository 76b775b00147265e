// SPDX-License-Identifier: BSD-3-Clause

// Numbers and columns of reports.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace remat {

/// "640 B", "1.25 KiB"
std::string bytes_str(size_t bytes);

/// "1 storage", "3 storages"
std::string count_str(size_t count, const std::string& what);

/// Rows of cells, each column as wide as its widest cell; the first is aligned to the right.
/// `indent` spaces in front, none at the ends of lines; each line begins with a line feed.
std::string columns(const std::vector<std::vector<std::string>>& rows, size_t indent);

}  // namespace remat
