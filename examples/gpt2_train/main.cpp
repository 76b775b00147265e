// SPDX-License-Identifier: BSD-3-Clause

// Trains a GPT-2 plain and checkpointed: remat changes its memory and not one bit of its gradients.
#include "options.h"
#include "report.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

namespace gpt2_train {
namespace {

constexpr int kUnequal = 1;
constexpr int kCannotRun = 2;

constexpr const char* kPurpose =
    "Trains a byte-level GPT-2 from the same seed several times: plain, with every block "
    "checkpointed by remat, with parts of each block kept, and with checkpointed blocks inside "
    "checkpointed groups, and planned for half of the memory. Prints memory, time, and whether the "
    "gradients agree bit for bit.";

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
  group->add_option("--text", options.text, "File or folder to learn from")
      ->check(CLI::ExistingPath);
}

int train(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  const Report report = run(options);
  fmt::print("\n{}", to_table(report));
  const std::vector<std::string> found = faults(report);
  for (const std::string& fault : found) fmt::print(stderr, "[gpt2_train] {}\n", fault);
  return found.empty() ? 0 : kUnequal;
}

int run_program(int argc, char** argv) {
  Options options;
  options.text = REMAT_DEMO_TEXT_DIR;
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
