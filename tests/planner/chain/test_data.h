// SPDX-License-Identifier: BSD-3-Clause

// The planner's test data, and helpers for files.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace remat::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::filesystem::path planner_data() {
  return REMAT_PLANNER_DATA;
}

/// Returns the files of tests/data/planner whose names begin with `prefix`, sorted.
inline std::vector<std::filesystem::path> instances(const std::string& prefix) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(planner_data())) {
    if (entry.path().filename().string().rfind(prefix, 0) == 0) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace remat::test
