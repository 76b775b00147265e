// SPDX-License-Identifier: BSD-3-Clause

// A random generator for a device without data.
#pragma once

#include <ATen/core/Generator.h>

namespace remat {

/// Makes a generator for remat_meta. Its seed can be set and read, so that code which seeds or
/// saves every generator runs; no op draws from it.
at::Generator make_dry_generator();

}  // namespace remat
