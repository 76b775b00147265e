// SPDX-License-Identifier: BSD-3-Clause

// Reads and writes files. Reads 64-bit numbers, which are text because not all JSON readers keep
// them exactly.
#include "json_rows.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace remat::detail {

uint64_t read_hex(const JsonValue& value) {
  const std::string text = value.string();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    value.fail("16 hex digits", value.shown());
  return std::stoull(text, nullptr, 16);
}

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what, int error) {
  throw std::runtime_error("[memory plan] " + path + ": expected a file that can be " + what +
                           ", got: " + std::generic_category().message(error) +
                           ". Give another path.");
}

}  // namespace

std::string read_text_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, "read", errno);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_text_file(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".unfinished";
  {
    std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
    out << text;
    out.flush();
    if (!out) refuse(path, "written", errno);
  }
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(unfinished.c_str());
    refuse(path, "written", error);
  }
}

}  // namespace remat::detail
