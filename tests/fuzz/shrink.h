// SPDX-License-Identifier: BSD-3-Clause

// Makes failing programs smaller.
#pragma once

#include <functional>

#include "fuzz/program.h"

namespace remat::fuzz {

/// Leaves out steps of `program` while `fails` stays true, as it is for `program`.
Program shrink(const Program& program, const std::function<bool(const Program&)>& fails);

}  // namespace remat::fuzz
