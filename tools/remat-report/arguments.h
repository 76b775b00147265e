// SPDX-License-Identifier: BSD-3-Clause

// What remat-report is asked for.
#pragma once

#include <string>

namespace remat_report {

enum ExitCode : int { kDone = 0, kFault = 1, kUsage = 2, kFile = 3 };

struct Arguments {
  std::string path;
  std::string second_path;  ///< "": one recording.
  std::string page_path;
};

/// False: the program ends with exit_code; what there is to say has been said.
bool parse(int argc, char** argv, Arguments& arguments, int& exit_code);

}  // namespace remat_report
