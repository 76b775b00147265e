// SPDX-License-Identifier: BSD-3-Clause

// Computes the figures of a run and shows them.
#include "report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace gpt2_train {

namespace {

double first_loss(const Trainer& row) {
  return row.steps().front().loss.item<double>();
}

double last_loss(const Trainer& row) {
  return row.steps().back().loss.item<double>();
}

int64_t largest(const Trainer& row, int64_t StepRecord::*bytes) {
  int64_t result = 0;
  for (const StepRecord& step : row.steps()) {
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
double median_seconds(const Trainer& row) {
  std::vector<double> seconds;
  for (size_t i = 1; i < row.steps().size(); ++i) {
    seconds.push_back(row.steps()[i].seconds);
  }
  return median(std::move(seconds));
}

// Ratios are taken step by step: the modes take turns, so a disturbance affects both times.
double time_ratio(const Trainer& plain, const Trainer& row) {
  std::vector<double> ratios;
  for (size_t i = 1; i < row.steps().size(); ++i) {
    ratios.push_back(row.steps()[i].seconds / plain.steps()[i].seconds);
  }
  return median(std::move(ratios));
}

std::string with_share(int64_t bytes, int64_t plain_bytes) {
  return fmt::format("{:.1f} MiB {:3.0f} %", static_cast<double>(bytes) / (1024.0 * 1024.0),
                     100.0 * static_cast<double>(bytes) / static_cast<double>(plain_bytes));
}

constexpr char kLine[] = "{:<18}  {:>18}  {:>15}  {:>15}  {:>12}  {:>23}\n";

std::string line_of(const Trainer& plain, const Trainer& row) {
  const auto bytes = [&](int64_t StepRecord::*member) {
    return with_share(largest(row, member), largest(plain, member));
  };
  return fmt::format(
      kLine, row.mode(), fmt::format("{:.3f} -> {:.3f}", first_loss(row), last_loss(row)),
      bytes(&StepRecord::resident_bytes), bytes(&StepRecord::peak_bytes),
      fmt::format("{:.2f}", time_ratio(plain, row)), row.difference.empty() ? "yes" : "no");
}

std::string legend(const Trainer& plain, size_t depth) {
  return fmt::format(
      "each block: a region for every block. saved: the regions keep what these calls make. "
      "nested: groups\nof {} blocks are regions too, for which SAVE keeps nothing before their "
      "replay.\nbudget 50 %: no regions; the step is measured, then planned for half of plain's "
      "peak.\nBytes: what a step allocates until backward ends, gradients included; resident: "
      "after the forward.\nA plain step takes {:.0f} ms.\n",
      group_size(depth), 1e3 * median_seconds(plain));
}

}  // namespace

void show_progress(const std::vector<Trainer>& trainers, int64_t steps) {
  constexpr int64_t kLinesWithoutTerminal = 10;
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const auto step = static_cast<int64_t>(trainers[0].steps().size()) - 1;
  const bool is_last = step + 1 == steps;
  const int64_t every = std::max<int64_t>(1, steps / kLinesWithoutTerminal);
  if (!is_terminal && !is_last && step % every != 0) return;
  std::string line = fmt::format("step {}/{}  loss {:.3f}  seconds", step + 1, steps,
                                 trainers[0].steps().back().loss.item<double>());
  for (const Trainer& row : trainers) line += fmt::format(" {:.2f}", row.steps().back().seconds);
  fmt::print(stderr, "{}{}{}", is_terminal ? "\r\033[K" : "", line,
             is_terminal && !is_last ? "" : "\n");
  std::fflush(stderr);
}

std::vector<std::string> faults(const std::vector<Trainer>& trainers) {
  std::vector<std::string> found;
  for (const Trainer& row : trainers) {
    if (!(last_loss(row) < first_loss(row))) {  // true for NaN, too
      found.push_back(
          fmt::format("{}: expected the loss to fall, got {:.3f} -> {:.3f}. Train longer or change "
                      "--learning-rate.",
                      row.mode(), first_loss(row), last_loss(row)));
    }
    if (!row.difference.empty()) {
      found.push_back(fmt::format("{}: expected the bits of plain, got another {}.", row.mode(),
                                  row.difference));
    }
  }
  return found;
}

std::string to_table(const std::vector<Trainer>& trainers, int64_t depth) {
  std::string text = fmt::format(kLine, "mode", "loss first -> last", "resident bytes",
                                 "peak bytes", "time / plain", "gradients bitwise equal");
  for (const Trainer& row : trainers) text += line_of(trainers.front(), row);
  return text + legend(trainers.front(), static_cast<size_t>(depth));
}

}  // namespace gpt2_train
