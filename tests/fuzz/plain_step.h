// SPDX-License-Identifier: BSD-3-Clause

// Extracts the plain function of a random program, and makes programs that differ slightly.
#pragma once

#include "fuzz/choices.h"
#include "fuzz/program.h"

namespace remat::fuzz {

/// Returns the program without regions, named calls and hooks that copy, which plans do not cover.
Program plain_step_of(Program program);

/// Returns the program with one op added, removed or changed.
Program changed(Program program, Choices& choose);

}  // namespace remat::fuzz
