// SPDX-License-Identifier: BSD-3-Clause

// The files of recording/report/, which the build embeds into the library.
#pragma once

#include <string_view>

namespace remat::detail {

extern const std::string_view kReportPage;    ///< HTML with {style}, {data} and {script}
extern const std::string_view kReportStyle;   ///< CSS
extern const std::string_view kReportScript;  ///< JavaScript

}  // namespace remat::detail
