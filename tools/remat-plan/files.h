// SPDX-License-Identifier: BSD-3-Clause

// Files that remat-plan reads and writes.
#pragma once

#include <stdexcept>
#include <string>

namespace remat_plan {

/// Thrown for a file that cannot be read, written or used.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// "-" is standard input.
/// @throws FileError
std::string read_text(const std::string& path);

/// @throws FileError
void write_text(const std::string& path, const std::string& text);

}  // namespace remat_plan
