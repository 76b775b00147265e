// SPDX-License-Identifier: BSD-3-Clause

// Files of profiles and plans.
#pragma once

#include <string>

namespace remat::detail {

/// @throws std::runtime_error `[memory plan] path: ...` if the file cannot be read.
std::string read_text_file(const std::string& path);

/// A file that is there is replaced when all is written.
/// @throws std::runtime_error `[memory plan] path: ...` if that fails.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace remat::detail
