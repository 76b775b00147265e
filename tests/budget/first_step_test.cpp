// SPDX-License-Identifier: BSD-3-Clause

// The first step within a budget, which is cut while it runs.
#include <torch/torch.h>

#include <string>
#include <vector>

#include <remat/budget/auto_checkpoint.h>
#include <remat/remat.h>

#include "budget/collected_warnings.h"
#include "budget/shared_weight_layers.h"
#include "support/catch.h"

namespace remat {

TEST_CASE("The function is called exactly once in each step", "[budget][auto]") {
  Layers layers;
  int calls = 0;
  const auto fn = counted(layers, calls);
  const auto planned = auto_checkpoint({.name = "layers", .memory_budget = "50%"})(fn);
  int steps = 0;
  const auto check = [&](const at::Tensor& x) {
    check_step(planned, layers, x);
    CHECK(calls == ++steps);
  };
  for (int i = 0; i < 6; ++i) check(rows(64));  // measured, then planned
  for (int i = 0; i < 4; ++i) check(rows(96));  // other sizes
  layers.extra = 3;
  for (int i = 0; i < 6; ++i) check(rows(64));  // other ops
}

// 64 layers save four tensors each, and one crosses each cut.
TEST_CASE("The first step takes far less than all that it saves", "[budget][auto]") {
  const at::Tensor weight = torch::ones({32, 32}).div(40).requires_grad_();
  const auto deep = [&](at::Tensor x) {
    for (int i = 0; i < 64; ++i) x = x + torch::gelu(x.mm(weight)).tanh();
    return x.square().mean();
  };
  const auto planned = auto_checkpoint({.name = "deep", .memory_budget = "50%"})(deep);
  const auto [plain_peak, gradient] = step(deep, weight, rows(64));
  const auto [peak, got] = step(planned, weight, rows(64));
  CHECK(same_bits(got, gradient));
  CHECK(peak < plain_peak / 4);
}

TEST_CASE("Memory that is filled in a later segment does not make a step another kind",
          "[budget][auto]") {
  const Layers layers;
  std::vector<std::string> warnings;
  const auto fn = [&](at::Tensor x) {
    const at::Tensor filled = torch::empty_like(x);
    for (int i = 0; i < 16; ++i) x = x + torch::gelu(x.mm(layers.weight)).tanh();
    filled.copy_(x);
    for (int i = 0; i < 4; ++i) x = x + torch::gelu((x + filled).mm(layers.weight)).tanh();
    return x.square().mean();
  };
  const auto planned =
      auto_checkpoint({.name = "filled", .memory_budget = "60%", .warn = collect_in(warnings)})(fn);
  const at::Tensor expected = step(fn, layers.weight, rows(64)).second;
  for (int i = 0; i < 6; ++i)
    CHECK(same_bits(step(planned, layers.weight, rows(64)).second, expected));
  CHECK(planned.plan().feasible);
  CHECK(warnings.empty());
}

}  // namespace remat
