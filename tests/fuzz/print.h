// SPDX-License-Identifier: BSD-3-Clause

// Random programs as source code, which says whether remat does as plain code does.
#pragma once

#include <string>

#include "fuzz/program.h"

namespace remat::fuzz {

/// A C++ program for remat's public API. Its main() prints what differs and returns 1, else 0.
std::string to_cpp(const Program& program);

/// The same for Python, in which cuts are where they are in C++.
std::string to_python(const Program& program);

}  // namespace remat::fuzz
