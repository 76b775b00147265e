// SPDX-License-Identifier: BSD-3-Clause

// What a report's page is told of a recording.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include <remat/recording/recording.h>

namespace remat::detail {

/// Note [Data of a page]: times are nanoseconds, each list of them differences to the one before;
/// text is a number in "words". Lists of what is alike stand side by side, one a field.
nlohmann::ordered_json report_data(const Recording& recording, const std::string& name,
                                   size_t most_points, size_t most_rows);

}  // namespace remat::detail
