// SPDX-License-Identifier: BSD-3-Clause

// Runs programs by a shell.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "support/catch.h"

namespace remat::test {

struct Result {
  int exit_code = -1;
  std::string output;  ///< Standard output; standard error, too, if the command ends in 2>&1.
};

inline Result run_command(const std::string& command) {
  Result result;
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

}  // namespace remat::test
