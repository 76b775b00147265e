// SPDX-License-Identifier: BSD-3-Clause

// The text for data that is not there.
#pragma once

#include <string>
#include <string_view>

#include <remat/placeholder/placeholder.h>

namespace remat {

/// `reader` is an op's name, or what else reads.
std::string placeholder_access_message(std::string_view reader, const PlaceholderInfo& info);

}  // namespace remat
