// SPDX-License-Identifier: BSD-3-Clause

// Every model in every layout of regions and every use: bitwise what it is without checkpoint.
#include <torch/torch.h>

#include <string>

#include <remat/remat.h>

#include "matrix/expected_errors.h"
#include "matrix/models.h"
#include "matrix/outcome.h"
#include "matrix/structures.h"
#include "matrix/uses.h"
#include "support/catch.h"

namespace remat::matrix {
namespace {

constexpr uint64_t kSeed = 52744;
const std::string kNothing;

Wrap plain() {
  return [](const Block& block, const Tensors& inputs) { return block(inputs); };
}

/// Seen op by op, buffers are written once; unseen, they need a hook.
Wrap checkpointed(const Model& model, bool intercept) {
  CheckpointOptions options{.name = "block", .intercept = intercept};
  if (!intercept && !model.buffers.empty()) options.state_hooks = {buffer_hook(model.buffers)};
  return [options](const Block& block, const Tensors& inputs) {
    return checkpoint(options)(block)(inputs);
  };
}

enum class Mode { kPlain, kCheckpointed, kUnseen };

Wrap wrap(const Model& model, Mode mode) {
  return mode == Mode::kPlain ? plain() : checkpointed(model, mode == Mode::kCheckpointed);
}

Outcome run(const NamedModel& named, const Structure& structure, const Use& use, Mode mode) {
  torch::manual_seed(kSeed);
  const Model model = named.make();
  Outcome outcome;
  try {
    use.run({model, structure, wrap(model, mode)}, outcome);
  } catch (const std::exception& error) {
    outcome.set_error(error);
  }
  outcome.add_grads("parameter", model.parameters);
  outcome.add_all("buffer", model.buffers);
  outcome.add_process_state();
  return outcome;
}

void check_cell(const NamedModel& model, const Structure& structure, const Use& use) {
  const Outcome expected = run(model, structure, use, Mode::kPlain);
  const Outcome again = run(model, structure, use, Mode::kPlain);
  const Outcome got = run(model, structure, use, Mode::kCheckpointed);
  const Outcome unseen = run(model, structure, use, Mode::kUnseen);

  INFO(structure.name << ", " << use.name);
  {
    INFO("plain against itself: not reproducible?");
    CHECK(expected.differences(again) == kNothing);
  }
  {
    INFO("plain against the list of errors");
    const std::string listed = expected_error(model, structure, use);
    if (listed.empty()) {
      CHECK(expected.error() == kNothing);
    } else {
      CHECK_THAT(expected.error(), ContainsSubstring(listed));
    }
  }
  {
    INFO("checkpointed against plain");
    CHECK(expected.differences(got) == kNothing);
  }
  {
    INFO("checkpointed without interception against plain");
    CHECK(expected.differences(unseen) == kNothing);
  }
  if (!expected.error().empty()) {
    report_raising_cell(model.name + " / " + structure.name + " / " + use.name, expected.error());
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
