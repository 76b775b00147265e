// SPDX-License-Identifier: BSD-3-Clause

// Text files of profiles and plans.
#pragma once

#include <string>

namespace remat::detail {

/// Reads a file. @throws std::runtime_error `[memory plan] path: ...` if it cannot be read.
std::string read_text_file(const std::string& path);

/// Writes a file. An existing file is replaced only after all is written.
/// @throws std::runtime_error `[memory plan] path: ...` on failure.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace remat::detail
