// SPDX-License-Identifier: BSD-3-Clause

// Is the LibTorch in this process the one that remat was compiled for?
#pragma once

#include <string>
#include <string_view>

#include <remat/tape/export.h>

namespace remat::detail {

/// What the headers said when this library was compiled, as "2.11.0".
REMAT_API std::string_view compiled_torch_version();

/// What the loaded libtorch_cpu says of itself. Empty if it does not say.
REMAT_API std::string loaded_torch_version();

/// Throws std::runtime_error, naming both, unless major and minor are equal. What follows the minor
/// does not count: patch, "+cu130", "a0+git123". An empty `loaded` does not fit.
REMAT_API void check_torch_version(std::string_view compiled, std::string_view loaded);

}  // namespace remat::detail
