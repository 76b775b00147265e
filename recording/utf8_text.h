// SPDX-License-Identifier: BSD-3-Clause

// Makes valid UTF-8 of names of threads and files, which may be any bytes.
#pragma once

#include <string>
#include <string_view>

namespace remat::detail {

/// Replaces each byte of `text` that is not part of valid UTF-8 by U+FFFD.
std::string utf8_of(std::string_view text);

}  // namespace remat::detail
