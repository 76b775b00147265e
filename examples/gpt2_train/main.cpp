// SPDX-License-Identifier: BSD-3-Clause

// Trains a GPT-2 plain and checkpointed: remat changes its memory and not one bit of its gradients.
#include "report.h"
#include "trainer.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace gpt2_train {
namespace {

struct Options {
  Gpt2Config model;
  int64_t batch = 8;
  int64_t steps = 12;
  double learning_rate = 1e-3;
  uint64_t seed = 1;
  int threads = 1;  // one gives the steadiest figures; 0: LibTorch's default
  std::string text = REMAT_DEMO_TEXT;
};

constexpr int kUnequal = 1;
constexpr int kCannotRun = 2;

constexpr const char* kPurpose =
    "Trains a byte-level GPT-2 from the same seed several times: plain, with every block "
    "checkpointed by remat, with parts of each block kept, and with checkpointed blocks inside "
    "checkpointed groups, and planned for half of the memory. Prints memory, time, and whether the "
    "gradients agree bit for bit.";

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

const CLI::Range kCount(1, 1'000'000);

void check_heads(const Gpt2Config& model) {
  if (model.width % model.heads == 0) {
    return;
  }
  throw CLI::ValidationError("--heads", "expected a divisor of --width " +
                                            std::to_string(model.width) + ", got " +
                                            std::to_string(model.heads) +
                                            ". Every head takes an equal share of the width.");
}

void add_model_options(CLI::App& app, Gpt2Config& model) {
  const auto group = app.add_option_group("Model");
  group->add_option("--width", model.width, "Channels of the residual stream")->check(kCount);
  group->add_option("--depth", model.depth, "Number of blocks")->check(kCount);
  group->add_option("--heads", model.heads, "Attention heads, a divisor of the width")
      ->check(kCount);
  group->add_option("--sequence", model.sequence, "Bytes of text in one sample")->check(kCount);
  group->add_option("--dropout", model.dropout, "Probability of dropout, also in attention")
      ->check(CLI::Range(0.0, 0.99));
}

void add_training_options(CLI::App& app, Options& options) {
  const auto group = app.add_option_group("Training");
  group->add_option("--batch", options.batch, "Samples in one step")->check(kCount);
  group->add_option("--steps", options.steps, "Steps of each mode")
      ->check(CLI::Range(2, 1'000'000));
  group->add_option("--learning-rate", options.learning_rate, "Of AdamW")
      ->check(CLI::Range(0.0, 1.0));
  group->add_option("--seed", options.seed, "Of weights, samples and dropout");
  group->add_option("--threads", options.threads, "Threads inside operators; 0: LibTorch's choice")
      ->check(CLI::Range(0, 4096));
  group->add_option("--text", options.text, "File to learn from")->check(CLI::ExistingFile);
}

/// Throws a ValueError unless the file has more than `least` bytes.
std::string read_text(const std::string& path, int64_t least) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  TORCH_CHECK_VALUE(static_cast<int64_t>(text.size()) > least, "--text ", path,
                    ": expected a file of more than --sequence ", least, " bytes, got ",
                    text.size(), ". Give a longer text or a shorter sequence.");
  return text;
}

/// Draws samples of `length` bytes, [batch, length] of int64. A seed of `random` gives the same
/// samples on every machine.
at::Tensor draw_samples(std::string& text, int64_t batch, int64_t length, std::mt19937_64& random) {
  const auto places = text.size() - static_cast<size_t>(length) + 1;
  std::vector<at::Tensor> samples;
  for (int64_t i = 0; i < batch; ++i) {
    // Modulo, since std distributions differ between libraries.
    char* const start = text.data() + random() % places;
    samples.push_back(torch::from_blob(start, {length}, torch::kUInt8).to(torch::kInt64));
  }
  return torch::stack(samples);
}

// Comparing with plain is meaningful only if plain reproduces its own gradients.
std::string difference_of_plain_from_itself(Trainer& plain, const at::Tensor& bytes,
                                            uint64_t seed) {
  plain.compute_gradients(bytes, seed);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : plain.model().parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  plain.compute_gradients(bytes, seed);
  const auto parameters = plain.model().named_parameters();
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!same_bits(gradients[i], parameters[i].value().grad())) {
      return "gradient of " + parameters[i].key() + " when plain runs twice";
    }
  }
  return {};
}

void print_header(const Options& options, const torch::nn::Module& model, size_t text_bytes) {
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model.parameters()) parameters += parameter.numel();
  fmt::print(stderr,
             "GPT-2 of {} blocks, {} channels, {:.1f} million parameters; {} x {} bytes a step, "
             "from {:.1f} MB of {}\n",
             options.model.depth, options.model.width, 1e-6 * static_cast<double>(parameters),
             options.batch, options.model.sequence, 1e-6 * static_cast<double>(text_bytes),
             options.text);
}

/// Trains every mode on the same bytes, and compares each with plain after every step. The modes
/// take turns, which rotate, so that no mode is always first.
int train(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  std::string text = read_text(options.text, options.model.sequence);
  std::mt19937_64 random(options.seed);
  std::vector<Trainer> trainers;
  for (const Mode& mode : kModes)
    trainers.emplace_back(options.model, mode, options.learning_rate, options.seed);
  print_header(options, trainers[0].model(), text.size());
  for (int64_t i = 0; i < options.steps; ++i) {
    const at::Tensor bytes = draw_samples(text, options.batch, options.model.sequence + 1, random);
    if (i == 0)
      trainers[0].difference = difference_of_plain_from_itself(trainers[0], bytes, options.seed);
    for (size_t turn = 0; turn < trainers.size(); ++turn) {
      Trainer& trainer = trainers[(turn + static_cast<size_t>(i)) % trainers.size()];
      trainer.step(bytes, options.seed + static_cast<uint64_t>(i));
    }
    for (size_t k = 1; k < trainers.size(); ++k) trainers[k].compare(trainers[0]);
    show_progress(trainers, options.steps);
  }
  fmt::print("\n{}", to_table(trainers, options.model.depth));
  const std::vector<std::string> found = faults(trainers);
  for (const std::string& fault : found) fmt::print(stderr, "[gpt2_train] {}\n", fault);
  return found.empty() ? 0 : kUnequal;
}

int run_program(int argc, char** argv) {
  Options options;
  CLI::App app(kPurpose, "gpt2_train");
  app.option_defaults()->always_capture_default();
  add_model_options(app, options.model);
  add_training_options(app, options);
  try {
    app.parse(argc, argv);
    check_heads(options.model);
    return train(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kCannotRun;
  } catch (const c10::Error& error) {
    fmt::print(stderr, "[gpt2_train] {}\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    fmt::print(stderr, "[gpt2_train] {}\n", error.what());
  }
  return kCannotRun;
}

}  // namespace
}  // namespace gpt2_train

int main(int argc, char** argv) {
  return gpt2_train::run_program(argc, argv);
}
