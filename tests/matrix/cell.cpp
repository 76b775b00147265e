// SPDX-License-Identifier: BSD-3-Clause

// Runs a cell, and checks every plain run.
#include "matrix/cell.h"

#include <torch/torch.h>

#include <exception>

#include "matrix/expected_errors.h"
#include "support/catch.h"

namespace remat::matrix {
namespace {

constexpr uint64_t kSeed = 52744;

}  // namespace

Wrap plain(const Model& /*model*/) {
  return [](const Block& block, const Tensors& inputs) { return block(inputs); };
}

Outcome run_cell(const NamedModel& named, const Structure& structure, const Use& use,
                 const std::function<Wrap(const Model&)>& wrap) {
  torch::manual_seed(kSeed);
  const Model model = named.make();
  Outcome outcome;
  try {
    use.run({model, structure, wrap(model)}, outcome);
  } catch (const std::exception& error) {
    outcome.set_error(error);
  }
  outcome.add_grads("parameter", model.parameters);
  outcome.add_all("buffer", model.buffers);
  outcome.add_process_state();
  return outcome;
}

void check_plain(const NamedModel& model, const Structure& structure, const Use& use,
                 const Outcome& expected, const Outcome& again) {
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
  if (!expected.error().empty()) {
    report_raising_cell(model.name + " / " + structure.name + " / " + use.name, expected.error());
  }
}

}  // namespace remat::matrix
