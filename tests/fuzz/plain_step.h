// SPDX-License-Identifier: BSD-3-Clause

// The plain function in a random program, and others that are nearly the same.
#pragma once

#include "fuzz/choices.h"
#include "fuzz/program.h"

namespace remat::fuzz {

/// The program without regions, named calls and hooks that copy, which no plan knows of.
Program plain_step_of(Program program);

/// The program with one op more, one less, or another one.
Program changed(Program program, Choices& choose);

}  // namespace remat::fuzz
