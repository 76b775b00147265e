// SPDX-License-Identifier: BSD-3-Clause

// The command line of remat-trace.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace remat_trace {

enum ExitCode : int { kDone = 0, kFault = 1, kUsage = 2, kFile = 3, kDiffers = 4 };

/// Thrown for an invalid argument; the program ends with kUsage.
struct WrongArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct Arguments {
  std::string path;
  bool lists_ops = false;
  std::string op;      ///< Part of the names of listed ops; empty: any.
  std::string region;  ///< Part of the labels of the ops' regions; empty: any.
  std::string phase;   ///< outside, forward, replay or backward; empty: any.
  int64_t slot = -1;   ///< Slot saved while the op ran; -1: no condition.
  std::string from;    ///< Time range in which the op ran, at least in part: milliseconds since
  std::string to;      ///< the recording began, or names of marks; empty: no limit.
  int64_t most = 0;    ///< Limit on lines; 0: none.
  std::string chrome_path;
  std::string snapshot_path;
  /// Unset unless recordings are compared: `path` with this one; if empty, the replays of `path`
  /// with their forwards.
  std::optional<std::string> other_path;
};

/// Returns false if the program should end with exit_code; messages have been printed.
bool parse(int argc, char** argv, Arguments& arguments, int& exit_code);

}  // namespace remat_trace
