// SPDX-License-Identifier: BSD-3-Clause

// Reads and writes whole files.
#include "files.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

namespace remat_plan {

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw FileError("[remat-plan] " + path +
                    ": expected a file that can be read and is not empty. Correct the path.");
  }
  return text.str();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw FileError("[remat-plan] " + path + ": expected a path that can be written. Correct it.");
}

}  // namespace remat_plan
