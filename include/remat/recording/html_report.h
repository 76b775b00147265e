// SPDX-License-Identifier: BSD-3-Clause

// Export of a recording as an HTML page.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

struct ReportOptions {
  std::string name{};         ///< Name of the recording on the page; "": the name of its program
  std::string second_name{};  ///< Name of the second recording
  /// Approximate number of moments in the chart. The peak is one of them.
  size_t most_points = 5000;
  size_t most_rows = 24000;  ///< Limit on the rows for blocks alive at these moments; the page
                             ///< shows the smallest rows beyond the limit as a sum
};

/// Writes one self-contained HTML file: memory over time by kind, the blocks alive at the peak and
/// at any other moment in the chart, regions, times of forward and replays, and plans beside
/// measurements. Text of the recording is escaped.
REMAT_API void write_report(const Recording& recording, std::ostream& out,
                            const ReportOptions& options = {});

/// Writes a file with two recordings, one above the other; each gets half of the points and rows.
REMAT_API void write_report(const Recording& first, const Recording& second, std::ostream& out,
                            const ReportOptions& options = {});

/// Reads one or two recordings and writes their page to a file. Returns one line for each recording
/// that is damaged, of which the page shows the part before the damage. @throws
/// std::invalid_argument `[recording] path: expected ..., got .... What to do.` if a recording
/// cannot be read, if there are none or more than two, or if the page cannot be written. An
/// existing page stays unchanged if a recording cannot be read.
REMAT_API std::vector<std::string> write_report_file(const std::vector<std::string>& recordings,
                                                     const std::string& page);

}  // namespace remat
