// SPDX-License-Identifier: BSD-3-Clause

// Reads the command line with CLI11.
#include "arguments.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <type_traits>

namespace remat_plan {

namespace {

const char* const footer = R"(Examples:
  remat-plan profile.json                                 what every budget costs
  remat-plan profile.json --budget 2.5GiB --plan out.json the fastest plan within 2.5 GiB
  remat-plan step.json --budget 60% --explain block.attn  what becomes of the ops of a module
  remat-plan profile.json --pareto curve.csv              the curve as numbers
  remat-plan model --gpt2-large --batch 2 --seq 512 --gpu v100 --budget 25%
  remat-plan model --layers 96 --width 8192 --heads 64 --batch 1 --seq 2048 --gpu a100 --budget 40GB --json

Bytes are activations, their gradients and workspaces: take parameters, their gradients and optimizer states
off your GPU's memory first.

Exit codes: 0 done; 1 a fault in remat-plan itself; 2 wrong arguments; 3 a file that cannot be read, written or
understood; 4 no plan fits the budget (the output says what does, and what stands in the way).)";

/// Accepts numbers from low to high. CLI11's own validator lets NaN pass, and numbers that the type
/// cannot hold.
template <typename Number>
CLI::Validator from_to(Number low, Number high) {
  const auto fault = [low, high](const std::string& text) -> std::string {
    Number value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && rest == end && value >= low && value <= high) return "";
    std::ostringstream expected;
    expected << "expected a " << (std::is_integral_v<Number> ? "whole number" : "number")
             << " from " << low << " to " << high << ", got " << text;
    return expected.str();
  };
  return {fault, ""};
}

/// An option whose text must not be empty.
CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& text,
                      const std::string& description) {
  const auto fault = [](const std::string& given) -> std::string {
    return given.empty() ? "expected text, got none" : "";
  };
  return app.add_option(name, text, description)->check(CLI::Validator(fault, ""));
}

void add_common(CLI::App& app, Arguments& arguments) {
  add_text(app, "--budget", arguments.budget,
           "Bytes with a unit (2.5GiB, 300MB), a percentage of the peak without "
           "checkpointing (60%), or 0 (each "
           "layer checkpointed) to 1 (nothing runs twice)");
  add_text(app, "--plan", arguments.plan_path, "Write the plan for the budget as JSON");
  add_text(app, "--replay", arguments.replay_path,
           "Read this plan of a measured step instead of making one, and check it");
  add_text(app, "--pareto", arguments.pareto_path, "Write what every budget costs as .csv");
  add_text(app, "--explain", arguments.explain,
           "What the plan of a measured step does with an op or the ops of a module");
  app.add_flag("--rotor", arguments.rotor,
               "Make Rotor's plans, to compare: a region replays whole or not at all");
  app.add_option("--max-breakpoints", arguments.max_breakpoints,
                 "Per part of the chain, 2 or more: fewer are faster, and plans no longer optimal "
                 "(0: all)")
      ->check(from_to<int64_t>(0, 1000000000));
  app.add_flag("--json", arguments.json, "Print one JSON object instead of a table");
}

/// The options that describe a model; `finish` resolves their combination.
struct Model {
  std::string gpu = "a100";
  std::string attention;
  bool named[4] = {false, false, false, false};
  std::optional<int64_t> layers;
  std::optional<int64_t> width;
  std::optional<int64_t> heads;
  std::optional<int64_t> vocabulary;
  std::optional<double> tflops;
  std::optional<double> gbps;
  std::optional<double> launch_us;
  std::optional<int64_t> element_bytes;

  static constexpr const char* names[4] = {"gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"};

  void add(CLI::App& app, Arguments& arguments) {
    for (int i = 0; i < 4; ++i)
      app.add_flag(std::string("--") + names[i], named[i], "The shape of this model");
    const auto size = from_to<int64_t>(1, 1000000);
    app.add_option("--layers", layers, "Layers")->check(from_to<int64_t>(1, 2000));
    app.add_option("--width", width, "Width of the residual stream")->check(size);
    app.add_option("--heads", heads, "Attention heads")->check(size);
    app.add_option("--vocabulary", vocabulary, "Tokens of the vocabulary (default 50257)")
        ->check(size);
    app.add_option("--batch", arguments.shape.batch, "Sequences in a step")
        ->check(size)
        ->capture_default_str();
    app.add_option("--seq", arguments.shape.sequence, "Tokens of a sequence")
        ->check(size)
        ->capture_default_str();
    app.add_option("--gpu", gpu, "v100 (fp32) or a100 (bf16)")
        ->check(CLI::IsMember({"v100", "a100"}))
        ->capture_default_str();
    app.add_option("--attention", attention,
                   "eager or flash (default: eager on the V100, flash on the A100)")
        ->check(CLI::IsMember({"eager", "flash"}));
    app.add_flag("--fused-head", arguments.shape.fused_head,
                 "The loss in 16 chunks, without a tensor of all logits");
    const auto rate = from_to(1e-6, 1e9);
    app.add_option("--tflops", tflops, "Rate of matrix products, in place of the GPU's")
        ->check(rate);
    app.add_option("--gbps", gbps, "Memory bandwidth in GB/s, in place of the GPU's")->check(rate);
    app.add_option("--launch-us", launch_us, "Time to launch an op, in place of the GPU's")
        ->check(from_to(0.0, 1e6));
    app.add_option("--element-bytes", element_bytes, "Bytes of an element, in place of the GPU's")
        ->check(size);
    add_text(app, "--profile-out", arguments.profile_out_path, "Write the profile as JSON");
  }

  void finish(Arguments& arguments) const {
    int count = 0;
    remat::TransformerShape shape;
    for (int i = 0; i < 4; ++i) {
      if (!named[i]) continue;
      shape = remat::transformer_shape(names[i]);
      ++count;
    }
    if (count > 1)
      throw CLI::ValidationError("model",
                                 "expected one of --gpt2-small, -medium, -large, -xl, got several");
    if (count == 0 && !(layers && width && heads)) {
      throw CLI::ValidationError(
          "model", "expected --gpt2-large or the like, or --layers, --width and --heads");
    }
    shape.batch = arguments.shape.batch;
    shape.sequence = arguments.shape.sequence;
    shape.fused_head = arguments.shape.fused_head;
    shape.layers = layers.value_or(shape.layers);
    shape.width = width.value_or(shape.width);
    shape.heads = heads.value_or(shape.heads);
    shape.vocabulary = vocabulary.value_or(shape.vocabulary);
    const bool flash = attention.empty() ? gpu == "a100" : attention == "flash";
    shape.attention = flash ? remat::Attention::kFlash : remat::Attention::kEager;
    arguments.shape = shape;
    remat::DeviceRates& rates = arguments.rates = remat::device_rates(gpu);
    rates.tflops = tflops.value_or(rates.tflops);
    rates.gbps = gbps.value_or(rates.gbps);
    rates.launch_us = launch_us.value_or(rates.launch_us);
    rates.element_bytes = element_bytes.value_or(rates.element_bytes);
  }
};

void check(const Arguments& arguments) {
  const bool needs_budget = !arguments.plan_path.empty() || !arguments.explain.empty();
  if (arguments.budget.empty() && needs_budget && arguments.replay_path.empty()) {
    throw CLI::ValidationError("--budget", "expected with --plan and --explain");
  }
  if (!arguments.budget.empty() && !arguments.replay_path.empty()) {
    throw CLI::ValidationError("--budget", "expected without --replay, whose plan has its own");
  }
  if (arguments.max_breakpoints == 1)
    throw CLI::ValidationError("--max-breakpoints", "expected 0, or 2 or more, got 1");
  const std::string& path = arguments.pareto_path;
  if (!path.empty() && !path.ends_with(".csv"))
    throw CLI::ValidationError("--pareto", "expected a path that ends in .csv, got " + path);
}

}  // namespace

bool parse(int argc, char** argv, Arguments& arguments, int& exit_code) {
  CLI::App app(
      "Plans what a training step keeps and what it computes again, for any memory budget.",
      "remat-plan");
  app.footer(footer);
  app.require_subcommand(0, 1);
  add_text(app, "profile", arguments.profile_path,
           "A profile (docs/reference/plan-files.md describes the JSON; - reads standard input)");
  add_common(app, arguments);
  CLI::App* const model = app.add_subcommand(
      "model", "A GPT-2-like model from shapes and rates, in place of a profile");
  Model shape;
  shape.add(*model, arguments);
  add_common(*model, arguments);
  try {
    app.parse(argc, argv);
    if (model->parsed() == !arguments.profile_path.empty()) {
      throw CLI::ValidationError("profile",
                                 "expected the path of a profile, or the word model and a shape");
    }
    if (model->parsed()) shape.finish(arguments);
    check(arguments);
    return true;
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "[remat-plan] " << error.what() << ". See remat-plan --help.\n";
    exit_code = kUsage;
  }
  return false;
}

}  // namespace remat_plan
