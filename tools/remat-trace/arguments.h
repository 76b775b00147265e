// SPDX-License-Identifier: BSD-3-Clause

// What remat-trace is asked for.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace remat_trace {

enum ExitCode : int { kDone = 0, kFault = 1, kUsage = 2, kFile = 3, kDiffers = 4 };

/// What cannot be: the program ends with kUsage.
struct WrongArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct Arguments {
  std::string path;
  bool lists_ops = false;
  std::string op;      ///< Of those that are listed, part of the name; "": any.
  std::string region;  ///< The same of the region's label.
  std::string phase;   ///< outside, forward, replay or backward; "": any.
  int64_t slot = -1;   ///< That was saved while they ran; -1: any, or none.
  std::string from;    ///< When they ran, at least in part: milliseconds since the recording
  std::string to;      ///< began, or the name of a mark; "": any time.
  int64_t most = 0;    ///< Lines; 0: all.
  std::string chrome_path;
  std::string snapshot_path;  ///< Of the pickle; JSON is beside it.
  bool compares = false;  ///< `path` with other_path; without one its replays with their forwards.
  std::string other_path;
};

/// False: the program ends with exit_code; what there is to say has been said.
bool parse(int argc, char** argv, Arguments& arguments, int& exit_code);

}  // namespace remat_trace
