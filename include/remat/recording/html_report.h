// SPDX-License-Identifier: BSD-3-Clause

// A recording as a page for browsers.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

struct ReportOptions {
  std::string name{};         ///< What the page calls the recording; "": its program.
  std::string second_name{};  ///< The same of the second.
  size_t most_points = 5000;  ///< Moments that the chart shows, about; the peak is among them.
  size_t most_rows = 24000;   ///< Of what is alive at them: the smallest are summed beyond that.
};

/// Writes one HTML file that loads nothing else: memory over time by kind, what was alive at the
/// peak and at any other moment that the chart shows, regions, times of forward and replays, plans
/// beside what was measured. Text of the recording cannot become markup.
REMAT_API void write_report(const Recording& recording, std::ostream& out,
                            const ReportOptions& options = {});

/// The same of two recordings, one over the other; each has half of the points and rows.
REMAT_API void write_report(const Recording& first, const Recording& second, std::ostream& out,
                            const ReportOptions& options = {});

/// Reads one recording or two, and writes their page into a file. Returns what is damaged in them,
/// a line for each that is: what comes before that is in the page. @throws std::invalid_argument
/// `[recording] path: expected ..., got .... What to do.` if one cannot be read, there are none or
/// more than two, or the page cannot be written; a page that is there is left as it is if a
/// recording cannot be read.
REMAT_API std::vector<std::string> write_report_file(const std::vector<std::string>& recordings,
                                                     const std::string& page);

}  // namespace remat
