// SPDX-License-Identifier: BSD-3-Clause

// The command line of remat-report.
#pragma once

#include <string>

namespace remat_report {

enum ExitCode : int { kDone = 0, kFault = 1, kUsage = 2, kFile = 3 };

struct Arguments {
  std::string path;
  std::string second_path;  ///< Empty for one recording.
  std::string page_path;
};

/// Returns false if the program should end with exit_code; messages have been printed.
bool parse(int argc, char** argv, Arguments& arguments, int& exit_code);

}  // namespace remat_report
