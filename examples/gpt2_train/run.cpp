// SPDX-License-Identifier: BSD-3-Clause

// The training loop: the modes take turns at each step, and each must agree with plain after it.
#include "run.h"

#include "progress.h"
#include "text.h"
#include "trainer.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace gpt2_train {

namespace {

struct NamedMode {
  Mode mode;
  const char* name;
};

constexpr NamedMode kModes[] = {
    {{Layout::kPlain, Saved::kNothing}, "plain"},
    {{Layout::kBlocks, Saved::kNothing}, "each block"},
    {{Layout::kBlocks, Saved::kAttention}, "attention saved"},
    {{Layout::kBlocks, Saved::kMatmuls}, "matmuls saved"},
    {{Layout::kBlocks, Saved::kEverything}, "all saved"},
    {{Layout::kNested, Saved::kNothing}, "nested"},
    {{Layout::kNested, Saved::kAttention}, "nested, att. saved"},
    {{Layout::kBudget, Saved::kNothing}, "budget 50 %"},
};

int64_t count_parameters(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

std::vector<Trainer> make_trainers(const Options& options) {
  std::vector<Trainer> trainers;
  for (const NamedMode& mode : kModes) {
    trainers.emplace_back(options.model, mode.mode, options.learning_rate, options.seed);
  }
  return trainers;
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

// The modes as trained so far, and their reports.
class SideBySide {
 public:
  explicit SideBySide(const Options& options)
      : seed_(options.seed), trainers_(make_trainers(options)) {
    for (const NamedMode& mode : kModes) {
      rows_.push_back({.mode = mode.name, .steps = {}, .difference = {}});
    }
  }

  void check_plain(const Batch& batch) {
    rows_[0].difference = difference_of_plain_from_itself(trainers_[0], batch, seed_);
  }

  void step(const Batch& batch, int64_t index) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const size_t turn =
          (i + static_cast<size_t>(index)) % rows_.size();  // no mode is always first
      rows_[turn].steps.push_back(
          trainers_[turn].step(batch, seed_ + static_cast<uint64_t>(index)));
    }
    for (size_t i = 1; i < rows_.size(); ++i) {
      compare_with_plain(i, index);
    }
  }

  std::string line() const {
    std::string text =
        fmt::format("loss {:.3f}  seconds", rows_[0].steps.back().loss.item<double>());
    for (const ModeReport& row : rows_) {
      text += fmt::format(" {:.2f}", row.steps.back().seconds);
    }
    return text;
  }

  const torch::nn::Module& plain_model() const { return trainers_[0].model(); }

  std::vector<ModeReport> take_rows() && { return std::move(rows_); }

 private:
  void compare_with_plain(size_t i, int64_t index) {
    if (!rows_[i].difference.empty()) {
      return;
    }
    const bool equal_loss = same_bits(rows_[0].steps.back().loss, rows_[i].steps.back().loss);
    const std::string which =
        equal_loss ? first_difference(trainers_[0].model(), trainers_[i].model()) : "loss";
    if (!which.empty()) {
      rows_[i].difference = fmt::format("{} in step {}", which, index + 1);
    }
  }

  uint64_t seed_;
  std::vector<Trainer> trainers_;
  std::vector<ModeReport> rows_;
};

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
  SideBySide modes(options);
  report.parameters = count_parameters(modes.plain_model());
  print_header(report);

  const Progress progress(options.steps);
  for (int64_t step = 0; step < options.steps; ++step) {
    const Batch batch = sampler.next();
    if (step == 0) {
      modes.check_plain(batch);
    }
    modes.step(batch, step);
    progress.show(step, modes.line());
  }
  report.rows = std::move(modes).take_rows();
  return report;
}

}  // namespace gpt2_train
