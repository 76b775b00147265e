// SPDX-License-Identifier: BSD-3-Clause

// Making failing programs smaller.
#pragma once

#include <functional>

#include "fuzz/program.h"

namespace remat::fuzz {

/// A program for which `fails` is true, as it is for `program`, with steps left out.
Program shrink(const Program& program, const std::function<bool(const Program&)>& fails);

}  // namespace remat::fuzz
