// SPDX-License-Identifier: BSD-3-Clause

// The error text for reading data that does not exist.
#pragma once

#include <string>
#include <string_view>

#include <remat/placeholder/placeholder.h>

namespace remat {

/// `reader` is an op's name, or a description of another read.
std::string placeholder_access_message(std::string_view reader, const PlaceholderInfo& info);

}  // namespace remat
