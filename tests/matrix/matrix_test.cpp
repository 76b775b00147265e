// SPDX-License-Identifier: BSD-3-Clause

// Every model in every layout of regions and every use gives the bits of a run without checkpoint.
#include <torch/torch.h>

#include <remat/remat.h>

#include "matrix/cell.h"
#include "matrix/models.h"
#include "matrix/outcome.h"
#include "matrix/structures.h"
#include "matrix/uses.h"
#include "support/catch.h"

namespace remat::matrix {
namespace {

/// A policy SAVEs all ops that are not pointwise.
Wrap saving_ops(const Model& /*model*/) {
  const CheckpointOptions options{.name = "block", .policy = make_policy(recompute_pointwise())};
  return [options](const Block& block, const Tensors& inputs) {
    return checkpoint(options)(block)(inputs);
  };
}

/// The function is not called again where a tape can be written.
Wrap from_tape(const Model& /*model*/) {
  const CheckpointOptions options{.name = "block", .replay = ReplayEngine::kAuto};
  return [options](const Block& block, const Tensors& inputs) {
    return checkpoint(options)(block)(inputs);
  };
}

/// With interception, buffers are written once; without it, a StateHook must restore them.
Wrap checkpointed(const Model& model, bool intercept) {
  CheckpointOptions options{.name = "block", .intercept = intercept};
  if (!intercept && !model.buffers.empty()) options.state_hooks = {buffer_hook(model.buffers)};
  return [options](const Block& block, const Tensors& inputs) {
    return checkpoint(options)(block)(inputs);
  };
}

void check_cell(const NamedModel& model, const Structure& structure, const Use& use) {
  const Outcome expected = run_cell(model, structure, use, plain);
  const Outcome again = run_cell(model, structure, use, plain);
  const auto seen = [](const Model& made) { return checkpointed(made, true); };
  const auto unseen = [](const Model& made) { return checkpointed(made, false); };

  INFO(structure.name << ", " << use.name);
  check_plain(model, structure, use, expected, again);
  {
    INFO("checkpointed against plain");
    CHECK(expected.differences(run_cell(model, structure, use, seen)) == kNothing);
  }
  {
    INFO("replayed from a tape against plain");
    CHECK(expected.differences(run_cell(model, structure, use, from_tape)) == kNothing);
  }
  {
    INFO("checkpointed with ops saved against plain");
    const Outcome outcome = run_cell(model, structure, use, saving_ops);
    // No replay can follow a backward through an op that does not run again.
    const bool is_refused =
        outcome.error().find("a backward inside the region's function that passes no SAVE call") !=
        std::string::npos;
    if (!is_refused) CHECK(expected.differences(outcome) == kNothing);
  }
  {
    INFO("checkpointed without interception against plain");
    CHECK(expected.differences(run_cell(model, structure, use, unseen)) == kNothing);
  }
}

void check_all(const NamedModel& model) {
  for (const Structure& structure : structures()) {
    DYNAMIC_SECTION(structure.name) {
      for (const Use& use : uses()) check_cell(model, structure, use);
    }
  }
}

}  // namespace

TEST_CASE("An MLP is bitwise as without checkpoint", "[matrix]") {
  check_all({"MLP", make_mlp});
}

TEST_CASE("A GPT-2 block with flash attention is bitwise as without checkpoint", "[matrix]") {
  check_all({"GPT-2 flash", make_flash_gpt2_block});
}

TEST_CASE("A GPT-2 block with math attention is bitwise as without checkpoint", "[matrix]") {
  check_all({"GPT-2 math", make_math_gpt2_block});
}

TEST_CASE("A GPT-2 block with dropout in its attention is bitwise as without checkpoint",
          "[matrix]") {
  check_all({"GPT-2 attention dropout", make_attention_dropout_gpt2_block});
}

TEST_CASE("Convolution and batch norm in training are bitwise as without checkpoint", "[matrix]") {
  check_all({"conv+BN", make_conv_batch_norm});
}

TEST_CASE("An LSTM is bitwise as without checkpoint", "[matrix]") {
  check_all({"LSTM", make_lstm});
}

TEST_CASE("A top-2 mixture of experts is bitwise as without checkpoint", "[matrix]") {
  check_all({"MoE top-2", make_top2_moe});
}

TEST_CASE("A tied embedding is bitwise as without checkpoint", "[matrix]") {
  check_all({"tied embedding", make_tied_embedding});
}

TEST_CASE("A custom autograd function is bitwise as without checkpoint", "[matrix]") {
  check_all({"custom function", make_custom_function});
}

TEST_CASE("Views and a chain of in-place writes are bitwise as without checkpoint", "[matrix]") {
  check_all({"in-place views", make_in_place_views});
}

TEST_CASE("A region that returns its input and a view of a parameter is bitwise as without",
          "[matrix]") {
  check_all({"returned input", make_returned_input});
}

}  // namespace remat::matrix
