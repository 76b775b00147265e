// SPDX-License-Identifier: BSD-3-Clause

// The name of a region in messages, and the error for a backward through the graph of a replay.
#pragma once

#include <c10/util/StringUtil.h>

#include <string>

namespace remat {

/// `name` is CheckpointOptions::name, which may be empty.
inline std::string region_label(const std::string& name) {
  return name.empty() ? "region without a name" : "region '" + name + "'";
}

inline std::string graph_of_replay(const std::string& label) {
  return c10::str("[replay] ", label,
                  ": expected backwards through the graph of the forward, got one through a tensor "
                  "that a function made when it ran again, and left outside (self.aux = ..., a "
                  "list). Return it from the function, or use replay = kAuto (\"auto\"), which "
                  "does not run the function again.");
}

}  // namespace remat
