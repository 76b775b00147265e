// SPDX-License-Identifier: BSD-3-Clause

// Runs programs and their backward, plain and checkpointed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fuzz/machine.h"
#include "fuzz/program.h"

namespace remat::fuzz {

/// Results of a run of a program, or the error that it raised.
struct Outcome {
  struct Error {
    enum class Type : uint8_t {
      kError,     // c10::Error, and any error of another type
      kRefused,   // c10::NotImplementedError
      kMismatch,  // ReplayMismatch
    };
    Type type;
    std::string message;
  };

  Tensors tensors{};
  std::optional<Error> error{};
};

/// Runs the program, and its backward as Program::use says.
Outcome run(const Program& program, Mode mode);

/// Returns a loss of all outputs.
at::Tensor loss_of(const Tensors& outputs);

/// Appends clones of `tensors`.
void copy_to(Tensors& results, const Tensors& tensors);

/// Describes the first difference; empty if there is none.
std::string difference(const Tensors& a, const Tensors& b);

/// Finds the tapes that can be cut, and their lengths, by a forward.
TapeSizes tape_sizes(const Program& program);

/// Difference between remat and plain code, in words without numbers. Empty if there is none, or if
/// remat refuses the program by a documented rule.
struct Verdict {
  std::string failure{};
  std::string message{};  // text of remat's error, or the difference
  bool raised = false;    // the plain run raised too
  const char* refusal = nullptr;
  const char* note = nullptr;  // outcome of a check within a budget
};

Verdict check(const Program& program, Mode mode = Mode::kCheckpointed);

/// Returns the rows of docs/reference/limits.md by which remat refuses the program with that error;
/// null if there are none.
const char* refusal_of(const Outcome::Error& error, const Program& program);

}  // namespace remat::fuzz
