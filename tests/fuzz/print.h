// SPDX-License-Identifier: BSD-3-Clause

// Prints random programs as source code, which checks that remat does the same as plain code.
#pragma once

#include <string>

#include "fuzz/program.h"

namespace remat::fuzz {

/// Returns a C++ program on remat's public API. Its main() prints differences and returns 1 if
/// there are any, else 0.
std::string to_cpp(const Program& program);

/// Returns a Python program like to_cpp(), with cuts at the same places as in C++.
std::string to_python(const Program& program);

}  // namespace remat::fuzz
