// SPDX-License-Identifier: BSD-3-Clause

// The list of cells that raise, and the report of those that did.
#include "matrix/expected_errors.h"

#include <torch/torch.h>

#include <exception>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "matrix/autocast_guard.h"

namespace remat::matrix {
namespace {

struct ExpectedError {
  std::string_view model;
  std::string_view structure;
  std::string_view use;
  std::string_view message;
};

constexpr std::string_view kAny = "*";

// The first line that matches a cell counts; an empty message means that nothing is raised.
constexpr ExpectedError kExpectedErrors[] = {
    {"custom function", "inference inputs", "anomaly mode finding NaN", "returned nan values"},
    {"custom function", "inference inputs", kAny, ""},
    {"LSTM", "inference inputs", kAny, "Inference tensors cannot be saved for backward"},
    {"LSTM cells", "inference inputs", kAny, "Inference tensors cannot be saved for backward"},
    {"tied embedding", "inference inputs", kAny, "Inference tensors cannot be saved for backward"},
    {kAny, "inference inputs", "hooks inside", ""},
    {kAny, "inference inputs", "hooks inside and around", ""},
    {kAny, "inference inputs", kAny, "Inference tensors cannot be saved for backward"},
    {kAny, kAny, "anomaly mode finding NaN", "returned nan values"},
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
    {"conv+BN", "one region", "grad with graph inside", ""},
    {"conv+BN", "inference inputs cloned inside", "grad with graph inside", ""},
    {"conv+BN", kAny, "grad with graph inside", "batch_norm does not support 3rd+ order"},
#endif
    {"GPT-2 flash", kAny, "grad with graph inside",
     "flash_attention_for_cpu_backward is not implemented"},
    {"GPT-2 flash", kAny, "double backward", "flash_attention_for_cpu_backward is not implemented"},
};

/// Error of plain LibTorch for an LSTM in bfloat16, as autocast runs it: oneDNN has no kernel for
/// CPUs without AVX-512. Empty if it runs.
const std::string& error_of_bfloat16_lstm() {
  static const std::string error = [] {
    try {
      torch::nn::LSTM lstm(2, 2);
      const AutocastGuard autocast;
      lstm->forward(torch::ones({1, 1, 2}));
      return std::string();
    } catch (const std::exception&) {
      return std::string("could not create a primitive descriptor");
    }
  }();
  return error;
}

bool matches(std::string_view pattern, std::string_view name) {
  return pattern == kAny || pattern == name;
}

/// Cells by error. The destructor prints them at the end of the program.
class Report {
 public:
  Report() = default;
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  ~Report() {
    for (const auto& [error, cells] : cells_) {
      std::cout << "Plain and checkpointed raise \"" << error << "\" in " << cells.size()
                << " cells:\n";
      for (const std::string& cell : cells) std::cout << "  " << cell << "\n";
    }
  }

  void add(const std::string& cell, const std::string& error) { cells_[error].insert(cell); }

 private:
  std::map<std::string, std::set<std::string>> cells_;
};

}  // namespace

std::string expected_error(const NamedModel& model, const Structure& structure, const Use& use) {
  if (model.name == "LSTM" && structure.name.starts_with("autocast") &&
      !error_of_bfloat16_lstm().empty())
    return error_of_bfloat16_lstm();
  for (const ExpectedError& expected : kExpectedErrors) {
    if (matches(expected.model, model.name) && matches(expected.structure, structure.name) &&
        matches(expected.use, use.name)) {
      return std::string(expected.message);
    }
  }
  return "";
}

std::string expected_refusal(const Pattern& pattern, const Use& use) {
  const bool goes_back_inside =
      use.name == "backward and grad inside" || use.name == "grad with graph inside";
  if (!pattern.saves() || !goes_back_inside) return "";
  return "expected a backward inside the region's function that passes no SAVE call";
}

void report_raising_cell(const std::string& cell, const std::string& error) {
  static Report report;
  report.add(cell, error);
}

}  // namespace remat::matrix
