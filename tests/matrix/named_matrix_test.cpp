// SPDX-License-Identifier: BSD-3-Clause

// Every model of named calls in every pattern of policies, every layout of regions and every use
// gives the bits of a run without regions.
#include <torch/torch.h>

#include <functional>
#include <string>

#include "matrix/cell.h"
#include "matrix/expected_errors.h"
#include "matrix/named_models.h"
#include "matrix/patterns.h"
#include "support/catch.h"

namespace remat::matrix {
namespace {

using MakeModel = Model (*)(const Pattern&);

NamedModel in_pattern(const std::string& name, MakeModel make, const Pattern& pattern) {
  return {name, [make, &pattern] { return make(pattern); }};
}

void check_pattern(const NamedModel& model, const Structure& structure, const Use& use,
                   const Pattern& pattern, const Outcome& expected) {
  INFO(pattern.name);
  const Outcome got =
      run_cell(model, structure, use, [&](const Model&) { return checkpointed(pattern); });
  const std::string refusal = expected_refusal(pattern, use);
  const bool is_refused = !refusal.empty() && got.error().find(refusal) != std::string::npos;
  // An error that plain code raises too may come later than the refusal, or before it.
  if (!refusal.empty() && expected.error().empty()) {
    CHECK_THAT(got.error(), ContainsSubstring(refusal));
  } else if (!is_refused) {
    CHECK(expected.differences(got) == kNothing);
  }
}

void check_all(const std::string& name, MakeModel make) {
  const NamedModel unnamed = in_pattern(name, make, nothing_named());
  const NamedModel named = in_pattern(name, make, patterns().front());
  for (const Structure& structure : structures()) {
    DYNAMIC_SECTION(structure.name) {
      for (const Use& use : uses()) {
        INFO(structure.name << ", " << use.name);
        const Outcome expected = run_cell(unnamed, structure, use, plain);
        // Outside regions a named call is a plain call.
        check_plain(unnamed, structure, use, expected, run_cell(named, structure, use, plain));
        for (const Pattern& pattern : patterns()) {
          check_pattern(in_pattern(name, make, pattern), structure, use, pattern, expected);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("An MLP of named calls is bitwise as without", "[named_matrix]") {
  check_all("MLP", make_mlp_of_calls);
}

TEST_CASE("A GPT-2 block of named calls is bitwise as without", "[named_matrix]") {
  check_all("GPT-2", make_gpt2_block_of_calls);
}

TEST_CASE("Batch norm in named calls is bitwise as without", "[named_matrix]") {
  check_all("conv+BN", make_conv_batch_norm_of_calls);
}

TEST_CASE("An LSTM with a named call per step is bitwise as without", "[named_matrix]") {
  check_all("LSTM cells", make_lstm_of_calls);
}

TEST_CASE("A top-2 mixture of named experts is bitwise as without", "[named_matrix]") {
  check_all("MoE top-2", make_top2_moe_of_calls);
}

TEST_CASE("Named calls that return views are bitwise as without", "[named_matrix]") {
  check_all("views", make_views_of_calls);
}

TEST_CASE("Named calls that write in place are bitwise as without", "[named_matrix]") {
  check_all("in-place", make_in_place_calls);
}

TEST_CASE("Random numbers in and between named calls are bitwise as without", "[named_matrix]") {
  check_all("random", make_random_calls);
}

TEST_CASE("Named calls with many results are bitwise as without", "[named_matrix]") {
  check_all("many results", make_many_results_of_calls);
}

}  // namespace remat::matrix
