// SPDX-License-Identifier: BSD-3-Clause

// The data of one recording for the report's page.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include <remat/recording/recording.h>

namespace remat::detail {

/// Note [Data of a page]: times are nanoseconds, and each list of times holds differences to the
/// entry before; text is an index into "words". Lists of similar things are stored as one list per
/// field.
nlohmann::ordered_json report_data(const Recording& recording, const std::string& name,
                                   size_t most_points, size_t most_rows);

}  // namespace remat::detail
