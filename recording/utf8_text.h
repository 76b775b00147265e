// SPDX-License-Identifier: BSD-3-Clause

// Names of threads and files are any bytes; other programs read UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace remat::detail {

/// `text` with each byte that is no part of UTF-8 replaced by U+FFFD.
std::string utf8_of(std::string_view text);

}  // namespace remat::detail
