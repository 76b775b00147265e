// SPDX-License-Identifier: BSD-3-Clause

// A generator that nobody draws from.
#pragma once

#include <ATen/core/Generator.h>

namespace remat {

/// A generator for remat_meta. It has a seed that can be set and read, so that code which seeds or
/// saves every generator runs; no op draws from it.
at::Generator make_dry_generator();

}  // namespace remat
