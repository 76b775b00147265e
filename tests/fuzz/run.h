// SPDX-License-Identifier: BSD-3-Clause

// Running programs and their backward, plain and checkpointed.
#pragma once

#include <optional>
#include <string>

#include "fuzz/machine.h"
#include "fuzz/program.h"

namespace remat::fuzz {

/// What a run of a program leaves behind; or the error that it raised.
struct Outcome {
  Tensors tensors{};
  std::optional<std::string> error{};
};

/// Runs the program, and its backward as Program::use says.
Outcome run(const Program& program, Mode mode);

/// What can be cut, found by a forward.
TapeSizes tape_sizes(const Program& program);

/// What remat does otherwise than plain code, in words without numbers. Empty if it does the same,
/// or if it refuses the program by a rule that is documented.
struct Verdict {
  std::string failure{};
  std::string message{};  // of remat's error, or what differs
  bool raised = false;    // in plain too
  const char* refusal = nullptr;
};

Verdict check(const Program& program, Mode mode = Mode::kCheckpointed);

/// The documented rule by which remat refuses the program with that message; null if there is none.
const char* refusal_of(const std::string& message, const Program& program);

}  // namespace remat::fuzz
