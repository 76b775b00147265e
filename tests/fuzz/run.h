// SPDX-License-Identifier: BSD-3-Clause

// Running programs and their backward, plain and checkpointed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fuzz/machine.h"
#include "fuzz/program.h"

namespace remat::fuzz {

/// What a run of a program leaves behind; or the error that it raised.
struct Outcome {
  struct Error {
    enum class Type : uint8_t {
      kError,     // c10::Error, and what is none of the others
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

/// Of all outputs.
at::Tensor loss_of(const Tensors& outputs);

/// Adds clones.
void copy_to(Tensors& results, const Tensors& tensors);

/// What differs first, in words. Empty if nothing does.
std::string difference(const Tensors& a, const Tensors& b);

/// What can be cut, found by a forward.
TapeSizes tape_sizes(const Program& program);

/// What remat does otherwise than plain code, in words without numbers. Empty if it does the same,
/// or if it refuses the program by a rule that is documented.
struct Verdict {
  std::string failure{};
  std::string message{};  // of remat's error, or what differs
  bool raised = false;    // in plain too
  const char* refusal = nullptr;
  const char* note = nullptr;  // what a check within a budget has come to
};

Verdict check(const Program& program, Mode mode = Mode::kCheckpointed);

/// The rows of docs/reference/limits.md by which remat refuses the program with that error; null
/// for none.
const char* refusal_of(const Outcome::Error& error, const Program& program);

}  // namespace remat::fuzz
