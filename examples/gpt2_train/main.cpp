// SPDX-License-Identifier: BSD-3-Clause

// Trains a GPT-2 plain and checkpointed: remat changes its memory and not one bit of its gradients.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <remat/remat.h>

#include "model.h"

namespace gpt2_train {
namespace {

constexpr int64_t kBatch = 8;
constexpr int64_t kSteps = 12;
constexpr uint64_t kSeed = 1;  // seeds weights, samples and dropout
constexpr double kLearningRate = 1e-3;
constexpr int64_t kWarmupSteps = 10;  // steps in which the learning rate rises linearly

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

/// Measurements of a step. Bytes count what forward and backward allocate, without parameters,
/// optimizer state and data.
struct StepRecord {
  at::Tensor loss;             // 0-dim, detached
  int64_t resident_bytes = 0;  // live at the end of the forward
  int64_t peak_bytes = 0;      // highest during forward and backward
  double seconds = 0;          // forward, backward and optimizer
};

/// True if two tensors have the same bits. Unlike at::equal, takes NaN as equal to itself and 0 as
/// different from -0.
bool same_bits(const at::Tensor& expected, const at::Tensor& got) {
  const at::Tensor left = expected.contiguous();
  const at::Tensor right = got.contiguous();
  return left.nbytes() == right.nbytes() &&
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

using Loss = std::function<at::Tensor(const at::Tensor& bytes)>;

Loss make_loss(const Gpt2& model, Layout layout) {
  const auto loss = [model = model](const at::Tensor& bytes) mutable {
    return torch::nn::functional::cross_entropy(model->forward(bytes.slice(1, 0, -1)).flatten(0, 1),
                                                bytes.slice(1, 1).flatten());
  };
  if (layout != Layout::kBudget) return loss;
  return remat::auto_checkpoint({.name = "gpt2", .memory_budget = "50%"})(loss);
}

/// Trains in one mode. Weights and dropout depend on seeds alone.
struct Trainer {
  explicit Trainer(const Mode& mode)
      : name(mode.name),
        model((torch::manual_seed(kSeed), Gpt2(Gpt2Config(), mode))),
        loss(make_loss(model, mode.layout)),
        optimizer(model->parameters(), torch::optim::AdamWOptions(kLearningRate)) {}

  /// Trains on `bytes`, [batch, length]. The last column is only a target.
  void step(const at::Tensor& bytes) {
    optimizer.zero_grad();
    torch::manual_seed(kSeed + steps.size());
    StepRecord record;
    const auto begin = std::chrono::steady_clock::now();
    {
      const remat::MemoryMeter meter;
      at::Tensor value = loss(bytes);
      record.resident_bytes = meter.current_bytes();
      value.backward();
      record.peak_bytes = meter.peak_bytes();
      record.loss = value.detach();
    }
    const double warm = static_cast<double>(steps.size() + 1) / static_cast<double>(kWarmupSteps);
    optimizer.param_groups().front().options().set_lr(kLearningRate * std::min(1.0, warm));
    optimizer.step();
    record.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    steps.push_back(std::move(record));
  }

  /// Notes the first difference between the last step of this trainer and that of `plain`.
  void compare(const Trainer& plain) {
    if (!difference.empty()) return;
    if (!same_bits(plain.steps.back().loss, steps.back().loss)) difference = "loss";
    const auto others = model->named_parameters();
    for (const auto& parameter : plain.model->named_parameters()) {
      const at::Tensor& other = others[parameter.key()];
      if (!difference.empty()) break;
      if (!same_bits(parameter.value().grad(), other.grad()))
        difference = "gradient of " + parameter.key();
      if (!same_bits(parameter.value(), other)) difference = parameter.key();
    }
    if (!difference.empty()) difference += fmt::format(" in step {}", steps.size());
  }

  double first_loss() const { return steps.front().loss.item<double>(); }
  double last_loss() const { return steps.back().loss.item<double>(); }

  const char* name;
  Gpt2 model;
  Loss loss;
  torch::optim::AdamW optimizer;
  std::vector<StepRecord> steps;
  std::string difference;  // empty if every step is bitwise equal to plain's
};

/// Draws samples of `length` bytes, [batch, length] of int64, which are the same on every machine.
at::Tensor draw_samples(std::string& text, int64_t length, std::mt19937_64& random) {
  const auto places = text.size() - static_cast<size_t>(length) + 1;
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < kBatch; ++i) {
    // Use modulo, because std distributions draw different numbers in different libraries.
    char* const start = text.data() + random() % places;
    samples.push_back(torch::from_blob(start, {length}, torch::kUInt8).to(torch::kInt64));
  }
  return torch::stack(samples);
}

/// Returns the median of the steps' times or, with `over`, of their ratios to the times of the same
/// steps of `over`. The first step is left out, because it warms up the allocator and creates the
/// optimizer's state.
double median_seconds(const Trainer& row, const Trainer* over = nullptr) {
  std::vector<double> values;
  for (size_t i = 1; i < row.steps.size(); ++i)
    values.push_back(row.steps[i].seconds / (over ? over->steps[i].seconds : 1));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Formats the largest `bytes` of all steps of `row`, and its share of the largest of `plain`.
std::string bytes_of(const Trainer& plain, const Trainer& row, int64_t StepRecord::*bytes) {
  const auto largest = [&](const Trainer& of) {
    const auto step = std::max_element(of.steps.begin(), of.steps.end(),
                                       [&](auto& a, auto& b) { return a.*bytes < b.*bytes; });
    return static_cast<double>((*step).*bytes);
  };
  return fmt::format("{:.1f} MiB {:3.0f} %", largest(row) / (1024.0 * 1024.0),
                     100.0 * largest(row) / largest(plain));
}

void print_table(const std::vector<Trainer>& trainers) {
  static constexpr char kLine[] = "{:<18}  {:>18}  {:>15}  {:>15}  {:>12}  {:>23}\n";
  const Trainer& plain = trainers.front();
  fmt::print("\n");
  fmt::print(kLine, "mode", "loss first -> last", "resident bytes", "peak bytes", "time / plain",
             "gradients bitwise equal");
  for (const Trainer& row : trainers) {
    fmt::print(kLine, row.name, fmt::format("{:.3f} -> {:.3f}", row.first_loss(), row.last_loss()),
               bytes_of(plain, row, &StepRecord::resident_bytes),
               bytes_of(plain, row, &StepRecord::peak_bytes),
               fmt::format("{:.2f}", median_seconds(row, &plain)),
               row.difference.empty() ? "yes" : "no");
  }
  fmt::print(
      "each block: a region for every block. saved: the regions keep what these calls make. "
      "nested: groups\nof {} blocks are regions too, for which SAVE keeps nothing before their "
      "replay.\nbudget 50 %: no regions; the step is measured, then planned for half of plain's "
      "peak.\nBytes: what a step allocates until backward ends, gradients included; resident: "
      "after the forward.\nA plain step takes {:.0f} ms.\n",
      group_size(static_cast<size_t>(Gpt2Config().depth)), 1e3 * median_seconds(plain));
}

/// Trains every mode on the same bytes, and compares each mode with plain after every step. Each
/// step starts with another mode. Returns true if in every mode the loss fell, and all losses,
/// gradients and weights have the bits of plain's.
bool train() {
  torch::set_num_threads(1);  // gives the steadiest figures
  std::ifstream file(REMAT_DEMO_TEXT, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const int64_t length = Gpt2Config().sequence + 1;
  TORCH_CHECK(static_cast<int64_t>(text.size()) >= length, REMAT_DEMO_TEXT, " is too short");
  std::mt19937_64 random(kSeed);
  std::vector<Trainer> trainers;
  for (const Mode& mode : kModes) trainers.emplace_back(mode);
  for (int64_t i = 0; i < kSteps; ++i) {
    const at::Tensor bytes = draw_samples(text, length, random);
    for (size_t turn = 0; turn < trainers.size(); ++turn)
      trainers[(turn + static_cast<size_t>(i)) % trainers.size()].step(bytes);
    for (Trainer& trainer : trainers) trainer.compare(trainers.front());
    fmt::print(stderr, "step {}/{}  loss {:.3f}\n", i + 1, kSteps, trainers.front().last_loss());
  }
  print_table(trainers);
  bool is_right = true;
  for (const Trainer& row : trainers) {
    if (row.difference.empty() && row.last_loss() < row.first_loss()) continue;
    fmt::print(
        stderr, "[gpt2_train] {}: expected the bits of plain and a loss that falls, got {}\n",
        row.name, row.difference.empty() ? "one that does not" : "another " + row.difference);
    is_right = false;
  }
  return is_right;
}

}  // namespace
}  // namespace gpt2_train

int main() {
  try {
    return gpt2_train::train() ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "[gpt2_train] {}\n", error.what());
    return 2;
  }
}
