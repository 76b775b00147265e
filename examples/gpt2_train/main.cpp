// SPDX-License-Identifier: BSD-3-Clause

// Trains a GPT-2 plain and checkpointed: remat changes its memory and not one bit of its gradients.
#include "options.h"
#include "report.h"
#include "run.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <variant>

namespace {

constexpr int kUnequal = 1;
constexpr int kCannotRun = 2;

int train(const gpt2_train::Options& options) {
  if (options.threads > 0) {
    torch::set_num_threads(options.threads);
  }
  const gpt2_train::Report report = gpt2_train::run(options);
  fmt::print("{}", options.json ? to_json(report) : "\n" + to_table(report));
  const auto faults = gpt2_train::faults(report);
  for (const auto& fault : faults) {
    fmt::print(stderr, "[gpt2_train] {}\n", fault);
  }
  return faults.empty() ? 0 : kUnequal;
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = gpt2_train::parse_options(argc, argv);
  if (const int* exit_status = std::get_if<int>(&parsed)) {
    return *exit_status == 0 ? 0 : kCannotRun;
  }
  try {
    return train(std::get<gpt2_train::Options>(parsed));
  } catch (const c10::Error& error) {
    fmt::print(stderr, "[gpt2_train] {}\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    fmt::print(stderr, "[gpt2_train] {}\n", error.what());
  }
  return kCannotRun;
}
