// SPDX-License-Identifier: BSD-3-Clause

// Computes the figures of a run.
#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gpt2_train {

namespace {

double first_loss(const ModeReport& row) {
  return row.steps.front().loss.item<double>();
}

double last_loss(const ModeReport& row) {
  return row.steps.back().loss.item<double>();
}

int64_t largest(const ModeReport& row, int64_t StepRecord::*bytes) {
  int64_t result = 0;
  for (const StepRecord& step : row.steps) {
    result = std::max(result, step.*bytes);
  }
  return result;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The first step is left out: it also warms up the allocator and creates the optimizer's state.
double median_seconds(const ModeReport& row) {
  std::vector<double> seconds;
  for (size_t i = 1; i < row.steps.size(); ++i) {
    seconds.push_back(row.steps[i].seconds);
  }
  return median(std::move(seconds));
}

// Ratios are taken step by step: the modes take turns, so a disturbance affects both.
double time_ratio(const ModeReport& plain, const ModeReport& row) {
  std::vector<double> ratios;
  for (size_t i = 1; i < row.steps.size(); ++i) {
    ratios.push_back(row.steps[i].seconds / plain.steps[i].seconds);
  }
  return median(std::move(ratios));
}

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

std::string with_share(int64_t bytes, int64_t plain_bytes) {
  return fmt::format("{} {:3.0f} %", mebibytes(bytes),
                     100.0 * static_cast<double>(bytes) / static_cast<double>(plain_bytes));
}

using Cells = std::vector<std::string>;

Cells cells_of(const ModeReport& plain, const ModeReport& row) {
  const auto bytes = [&](int64_t StepRecord::*member) {
    return with_share(largest(row, member), largest(plain, member));
  };
  return {row.mode,
          fmt::format("{:.3f} -> {:.3f}", first_loss(row), last_loss(row)),
          bytes(&StepRecord::resident_bytes),
          bytes(&StepRecord::peak_bytes),
          fmt::format("{:.2f}", time_ratio(plain, row)),
          row.difference.empty() ? "yes" : "no"};
}

// Aligns the first column left and the others right.
std::string align(const std::vector<Cells>& lines) {
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const Cells& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], line[i].size());
    }
  }
  std::string text;
  for (const Cells& line : lines) {
    text += fmt::format("{:<{}}", line[0], widths[0]);
    for (size_t i = 1; i < line.size(); ++i) {
      text += fmt::format("  {:>{}}", line[i], widths[i]);
    }
    text += '\n';
  }
  return text;
}

std::string legend(const Report& report) {
  return fmt::format(
      "each block: a region for every block. saved: the regions keep what these calls make. "
      "nested: "
      "groups\nof {} blocks are regions too, for which SAVE keeps nothing before their "
      "replay.\nbudget 50 %: no regions; the step is measured, then planned for half of plain's "
      "peak.\nBytes: "
      "what a step allocates until backward ends, gradients included; resident: after the "
      "forward.\nParameters take {} more. A plain step takes {:.0f} ms.\n",
      group_size(static_cast<size_t>(report.options.model.depth)),
      mebibytes(report.parameters * int64_t{sizeof(float)}),
      1e3 * median_seconds(report.rows.front()));
}

}  // namespace

std::vector<std::string> faults(const Report& report) {
  std::vector<std::string> found;
  for (const ModeReport& row : report.rows) {
    if (!(last_loss(row) < first_loss(row))) {  // true for NaN, too
      found.push_back(
          fmt::format("{}: expected the loss to fall, got {:.3f} -> {:.3f}. Train longer or change "
                      "--learning-rate.",
                      row.mode, first_loss(row), last_loss(row)));
    }
    if (!row.difference.empty()) {
      found.push_back(
          fmt::format("{}: expected the bits of plain, got another {}.", row.mode, row.difference));
    }
  }
  return found;
}

std::string to_table(const Report& report) {
  std::vector<Cells> lines{{"mode", "loss first -> last", "resident bytes", "peak bytes",
                            "time / plain", "gradients bitwise equal"}};
  for (const ModeReport& row : report.rows) {
    lines.push_back(cells_of(report.rows.front(), row));
  }
  return align(lines) + legend(report);
}

}  // namespace gpt2_train
