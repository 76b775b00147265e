// SPDX-License-Identifier: BSD-3-Clause

// Checks that the LibTorch in this process is the version that remat was compiled for.
#pragma once

#include <string>
#include <string_view>

#include <remat/engine/export.h>

namespace remat::detail {

/// Version in the headers that this library was compiled with, such as "2.11.0".
REMAT_API std::string_view compiled_torch_version();

/// Version that the loaded libtorch_cpu reports. Empty if it reports none.
REMAT_API std::string loaded_torch_version();

/// Throws std::runtime_error, naming both versions, unless their major and minor numbers are equal.
/// The rest of a version is ignored: patch, "+cu130", "a0+git123". An empty `loaded` never matches.
REMAT_API void check_torch_version(std::string_view compiled, std::string_view loaded);

}  // namespace remat::detail
