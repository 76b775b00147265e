// SPDX-License-Identifier: BSD-3-Clause

// The training loop: the modes take turns at each step, and each must agree with plain after it.
#include "report.h"
#include "text.h"
#include "trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace gpt2_train {

namespace {

constexpr Mode kModes[] = {
    {"plain", Layout::kPlain, Saved::kNothing},
    {"each block", Layout::kBlocks, Saved::kNothing},
    {"attention saved", Layout::kBlocks, Saved::kAttention},
    {"matmuls saved", Layout::kBlocks, Saved::kMatmuls},
    {"all saved", Layout::kBlocks, Saved::kEverything},
    {"nested", Layout::kNested, Saved::kNothing},
    {"nested, att. saved", Layout::kNested, Saved::kAttention},
    {"budget 50 %", Layout::kBudget, Saved::kNothing},
};

int64_t count_parameters(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

// Comparing with plain is meaningful only if plain reproduces its own gradients.
std::string difference_of_plain_from_itself(Trainer& plain, const Batch& batch, uint64_t seed) {
  plain.compute_gradients(batch, seed);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : plain.model().parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  plain.compute_gradients(batch, seed);
  const auto parameters = plain.model().named_parameters();
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!same_bits(gradients[i], parameters[i].value().grad())) {
      return "gradient of " + parameters[i].key() + " when plain runs twice";
    }
  }
  return {};
}

/// Trains all modes on the batch; the turns rotate, so that no mode is always first.
void step(std::vector<Trainer>& trainers, std::vector<ModeReport>& rows, const Batch& batch,
          int64_t index, uint64_t seed) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t turn = (i + static_cast<size_t>(index)) % rows.size();
    rows[turn].steps.push_back(trainers[turn].step(batch, seed));
  }
  for (size_t i = 1; i < rows.size(); ++i) {
    if (!rows[i].difference.empty()) continue;
    const bool equal_loss = same_bits(rows[0].steps.back().loss, rows[i].steps.back().loss);
    const std::string which =
        equal_loss ? first_difference(trainers[0].model(), trainers[i].model()) : "loss";
    if (!which.empty()) rows[i].difference = fmt::format("{} in step {}", which, index + 1);
  }
}

/// Shows the last step on standard error: on a terminal the line is rewritten at every step;
/// elsewhere about ten lines are printed.
void show_progress(const std::vector<ModeReport>& rows, int64_t step, int64_t steps) {
  constexpr int64_t kLinesWithoutTerminal = 10;
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const bool is_last = step + 1 == steps;
  const int64_t every = std::max<int64_t>(1, steps / kLinesWithoutTerminal);
  if (!is_terminal && !is_last && step % every != 0) return;
  std::string line = fmt::format("step {}/{}  loss {:.3f}  seconds", step + 1, steps,
                                 rows[0].steps.back().loss.item<double>());
  for (const ModeReport& row : rows) line += fmt::format(" {:.2f}", row.steps.back().seconds);
  fmt::print(stderr, "{}{}{}", is_terminal ? "\r\033[K" : "", line,
             is_terminal && !is_last ? "" : "\n");
  std::fflush(stderr);
}

void print_header(const Report& report) {
  const Options& options = report.options;
  fmt::print(stderr,
             "GPT-2 of {} blocks, {} channels, {:.1f} million parameters; {} x {} bytes a step, "
             "from {:.1f} MB of {}\n",
             options.model.depth, options.model.width,
             1e-6 * static_cast<double>(report.parameters), options.batch, options.model.sequence,
             1e-6 * static_cast<double>(report.text_bytes), options.text.string());
}

}  // namespace

Report run(const Options& options) {
  std::string text = read_text(options.text);
  Report report{.options = options, .text_bytes = static_cast<int64_t>(text.size()), .rows = {}};
  BatchSampler sampler(std::move(text), options.batch, options.model.sequence, options.seed);
  std::vector<Trainer> trainers;
  for (const Mode& mode : kModes) {
    trainers.emplace_back(options.model, mode, options.learning_rate, options.seed);
    report.rows.push_back({.mode = mode.name, .steps = {}, .difference = {}});
  }
  report.parameters = count_parameters(trainers[0].model());
  print_header(report);
  for (int64_t i = 0; i < options.steps; ++i) {
    const Batch batch = sampler.next();
    if (i == 0) {
      report.rows[0].difference = difference_of_plain_from_itself(trainers[0], batch, options.seed);
    }
    step(trainers, report.rows, batch, i, options.seed + static_cast<uint64_t>(i));
    show_progress(report.rows, i, options.steps);
  }
  return report;
}

}  // namespace gpt2_train
