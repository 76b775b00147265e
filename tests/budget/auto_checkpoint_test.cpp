// SPDX-License-Identifier: BSD-3-Clause

// Functions within a budget, measured and planned while they train.
#include <torch/torch.h>

#include <ATen/record_function.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <remat/budget/auto_checkpoint.h>
#include <remat/budget/profile.h>
#include <remat/remat.h>

#include "budget/collected_warnings.h"
#include "budget/shared_weight_layers.h"
#include "support/catch.h"
#include "support/default_device.h"
#include "support/error_text.h"
#include "support/named_step.h"

namespace remat {

TEST_CASE("A function is measured for some steps, then runs by a plan", "[budget][auto]") {
  const Layers layers;
  std::vector<std::string> lines;
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "50%", .progress = [&](const std::string& line) {
         lines.push_back(line);
       }})(layers);
  CHECK_THAT(error_text([&] { planned.plan(); }), ContainsSubstring("none yet"));
  for (int i = 0; i < 6; ++i) check_step(planned, layers, rows(64));
  const MemoryPlan plan = planned.plan();
  CHECK(plan.feasible);
  CHECK(step(planned, layers.weight, rows(64)).first == plan.predicted_peak_bytes);
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], ContainsSubstring("[auto_checkpoint] 'layers': measures "));
  CHECK_THAT(lines[1], ContainsSubstring("[auto_checkpoint] 'layers': fits "));
}

TEST_CASE("Copies share what was measured and planned", "[budget][auto]") {
  const Layers layers;
  const auto planned = auto_checkpoint({.name = "layers", .memory_budget = "50%"})(layers);
  for (int i = 0; i < 4; ++i) {
    const auto copy = planned;
    check_step(copy, layers, rows(64));
  }
  CHECK(planned.plan().feasible);
}

TEST_CASE("Arguments that are larger are measured, smaller ones are not", "[budget][auto]") {
  const Layers layers;
  int measured = 0;
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "50%", .progress = [&](const std::string& line) {
         if (line.find("measures") != std::string::npos) ++measured;
       }})(layers);
  for (int i = 0; i < 5; ++i) check_step(planned, layers, rows(64));
  CHECK(measured == 1);
  for (const int64_t count : {32, 48, 1, 64}) check_step(planned, layers, rows(count));
  CHECK(measured == 1);
  for (const int64_t count : {96, 96, 96, 80}) check_step(planned, layers, rows(count));
  CHECK(measured == 2);
}

TEST_CASE("Memory that grows by no argument's size leaves the plan, and is measured",
          "[budget][auto]") {
  const Layers layers;
  int64_t copies = 2;
  std::vector<std::string> warnings;
  const auto fn = [&](const at::Tensor& x) { return layers(x.repeat({copies, 1})); };
  const auto planned =
      auto_checkpoint({.name = "layers", .memory_budget = "60%", .warn = collect_in(warnings)})(fn);
  const auto check = [&] {
    const at::Tensor expected = step(fn, layers.weight, rows(32)).second;
    const auto [peak, got] = step(planned, layers.weight, rows(32));
    CHECK(same_bits(got, expected));
    return peak;
  };
  for (int i = 0; i < 5; ++i) check();
  const int64_t peak = planned.plan().predicted_peak_bytes;
  CHECK(check() == peak);
  copies = 1;
  CHECK(check() < peak);
  CHECK(warnings.empty());
  copies = 4;
  check();
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], ContainsSubstring(" bytes of new memory or less up to record 1, "
                                            "aten::mm, got 32768"));
  for (int i = 0; i < 3; ++i) check();
  const MemoryPlan larger = planned.plan();
  CHECK(larger.predicted_peak_bytes > peak);
  CHECK(check() == larger.predicted_peak_bytes);
  copies = 2;
  CHECK(check() < larger.predicted_peak_bytes);
  CHECK(warnings.size() == 1);
}

TEST_CASE("The number of plans is bounded", "[budget][auto]") {
  const Layers layers;
  int measured = 0;
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "60%", .progress = [&](const std::string& line) {
         if (line.find("measures") != std::string::npos) ++measured;
       }})(layers);
  for (int64_t count = 8; count < 60; ++count) check_step(planned, layers, rows(count));
  CHECK(measured == AutoCheckpoint::kMostMeasurements);
}

TEST_CASE("A step with other ops leaves the plan and is measured when it comes again",
          "[budget][auto]") {
  Layers layers;
  std::vector<std::string> warnings;
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "60%", .warn = collect_in(warnings)})(std::ref(layers));
  for (int i = 0; i < 5; ++i) check_step(planned, layers, rows(64));
  const int64_t budget = planned.plan().budget_bytes;
  layers.extra = 3;
  check_step(planned, layers, rows(64));
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], ContainsSubstring("expected aten::mm as record"));
  CHECK_THAT(warnings[0], ContainsSubstring("got aten::sigmoid"));
  for (int i = 0; i < 3; ++i) check_step(planned, layers, rows(64));
  CHECK(planned.plan().ops.size() == 8 * 4 + 3 + 2);
  CHECK(step(planned, layers.weight, rows(64)).first <= planned.plan().budget_bytes);
  layers.extra = 0;
  for (int i = 0; i < 3; ++i) check_step(planned, layers, rows(64));
  CHECK(step(planned, layers.weight, rows(64)).first <= budget);
  CHECK(warnings.size() == 1);
}

TEST_CASE("After steps that save nothing, a new kind is not taken for one that begins alike",
          "[budget][auto]") {
  Layers layers;
  bool saves = true;
  const auto fn = [&](const at::Tensor& x) { return saves ? layers(x) : layers.weight.sum(); };
  std::vector<std::string> lines;
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "60%", .progress = [&](const std::string& line) {
         lines.push_back(line);
       }})(fn);
  const auto check = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      const at::Tensor expected = step(fn, layers.weight, rows(64)).second;
      CHECK(same_bits(step(planned, layers.weight, rows(64)).second, expected));
    }
  };
  check(5);
  saves = false;
  check(3);
  saves = true;
  layers.extra = 3;
  check(1);
  CHECK_THAT(lines.back(), ContainsSubstring("such steps are measured when they come again"));
  check(5);
  CHECK(planned.plan().ops.size() == 8 * 4 + 3 + 2);
}

TEST_CASE("Kinds of steps that take turns are each measured, and run by plans of their own",
          "[budget][auto]") {
  const std::vector<int> turns =
      GENERATE(std::vector{0, 3}, std::vector{0, 3, 5}, std::vector{0, 0, 0, 0, 3},
               std::vector{0, 3, 3}, std::vector{0, 3, 5, 3});
  Layers layers;
  int measured = 0;
  int differed = 0;
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "60%", .progress = [&](const std::string& line) {
         if (line.find("measures") != std::string::npos) ++measured;
         if (line.find("is not like") != std::string::npos) ++differed;
       }})(std::ref(layers));
  const auto run_turns = [&](int count, bool is_planned) {
    for (int i = 0; i < count; ++i) {
      for (const int extra : turns) {
        layers.extra = extra;
        const at::Tensor expected = step(layers, layers.weight, rows(64)).second;
        const auto [peak, got] = step(planned, layers.weight, rows(64));
        CHECK(same_bits(got, expected));
        if (is_planned) CHECK(peak <= planned.plan().budget_bytes);
      }
    }
  };
  run_turns(10, /*is_planned=*/false);
  const int met = differed;
  CHECK(met <= 3 * static_cast<int>(turns.size()));
  run_turns(4, /*is_planned=*/true);
  CHECK(differed == met);
  CHECK(measured == static_cast<int>(std::set<int>(turns.begin(), turns.end()).size()));
}

TEST_CASE("Kinds of steps in any order are right, and those that come are measured",
          "[budget][auto]") {
  Layers layers;
  int calls = 0;
  const auto fn = counted(layers, calls);
  int measured = 0;
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "60%", .progress = [&](const std::string& line) {
         if (line.find("measures") != std::string::npos) ++measured;
       }})(fn);
  std::mt19937 random(3);
  const int kinds = 3;
  for (int i = 0; i < 120; ++i) {
    layers.extra = static_cast<int>(random() % kinds);
    check_step(planned, layers, rows(i % 3 == 0 ? 32 : 64));
  }
  CHECK(measured >= kinds);
  CHECK(calls == 120);
  for (int i = 0; i < 4; ++i) check_step(planned, layers, rows(64));
  CHECK(step(planned, layers.weight, rows(64)).first <= planned.plan().budget_bytes);
}

TEST_CASE("Kinds of steps that are new each time are measured a bounded number of times",
          "[budget][auto]") {
  Layers layers;
  int measured = 0;
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "60%", .progress = [&](const std::string& line) {
         if (line.find("measures") != std::string::npos) ++measured;
       }})(std::ref(layers));
  for (int i = 0; i < 4 * AutoCheckpoint::kMostMeasurements; ++i) {
    layers.extra = i % 2 == 0 ? 0 : i;
    check_step(planned, layers, rows(8));
  }
  CHECK(measured > static_cast<int>(AutoCheckpoint::kMostVariants));
  CHECK(measured <= AutoCheckpoint::kMostMeasurements);
}

TEST_CASE("Who is warned may ask for the plan, and throw", "[budget][auto]") {
  Layers layers;
  std::function<void()> on_warning = [] {};
  const auto planned =
      auto_checkpoint({.name = "layers", .memory_budget = "60%", .warn = [&](const std::string&) {
                         on_warning();
                       }})(std::ref(layers));
  for (int i = 0; i < 5; ++i) check_step(planned, layers, rows(64));
  int64_t asked = 0;
  on_warning = [&] {
    asked = planned.plan().budget_bytes;
    TORCH_CHECK(false, "a warning is an error");
  };
  layers.extra = 3;
  CHECK_THAT(error_text([&] { planned(rows(64)); }), ContainsSubstring("a warning is an error"));
  CHECK(asked > 0);
  for (int i = 0; i < 4; ++i) check_step(planned, layers, rows(64));
  CHECK(planned.plan().ops.size() == 8 * 4 + 3 + 2);
}

TEST_CASE("Who is told of progress may ask for the plan, and throw", "[budget][auto]") {
  Layers layers;
  std::vector<std::string> lines;
  std::function<void()> ask = [] {};
  const auto planned = auto_checkpoint(
      {.name = "layers", .memory_budget = "60%", .progress = [&](const std::string& line) {
         lines.push_back(line);
         ask();
       }})(std::ref(layers));
  ask = [&] { TORCH_CHECK(!error_text([&] { planned.plan(); }).empty()); };
  for (int i = 0; i < 3; ++i) check_step(planned, layers, rows(64));
  ask = [&] { TORCH_CHECK(planned.plan().feasible && false, "planned"); };
  CHECK_THAT(error_text([&] { planned(rows(64)); }), ContainsSubstring("planned"));
  ask = [] {};
  for (int i = 0; i < 2; ++i) check_step(planned, layers, rows(64));
  CHECK(lines.size() == 2);
}

TEST_CASE("A thread that ends leaves the measuring to others", "[budget][auto]") {
  const Layers layers;
  const auto first = auto_checkpoint({.name = "first", .memory_budget = "50%"})(layers);
  const auto second = auto_checkpoint({.name = "second", .memory_budget = "50%"})(layers);
  std::thread([&] { check_step(first, layers, rows(64)); }).join();
  for (int i = 0; i < 4; ++i) check_step(second, layers, rows(64));
  CHECK(second.plan().feasible);
}

TEST_CASE("A measurement by hand ends one that waits for its next step", "[budget][auto]") {
  const Layers layers;
  const auto planned = auto_checkpoint({.name = "layers", .memory_budget = "50%"})(layers);
  check_step(planned, layers, rows(64));
  CHECK(profile({.name = "by hand", .steps = 1})(layers)(rows(64)).records.size() > 0);
  for (int i = 0; i < 4; ++i) check_step(planned, layers, rows(64));
  CHECK(planned.plan().feasible);
}

// On a device the hook runs on another thread, which measures nothing.
TEST_CASE("A measurement whose function dies in a backward ends after that",
          "[budget][auto][cpu]") {
  const Layers layers;
  auto planned =
      std::make_optional(auto_checkpoint({.name = "layers", .memory_budget = "50%"})(layers));
  const at::Tensor y = (*planned)(rows(64));
  bool is_measured = false;
  y.register_hook([&](const at::Tensor& /*grad*/) {
    planned.reset();
    is_measured = at::hasThreadLocalCallbacks();
  });
  y.backward();
  CHECK(is_measured);
  const auto next = auto_checkpoint({.name = "next", .memory_budget = "50%"})(layers);
  for (int i = 0; i < 4; ++i) check_step(next, layers, rows(64));
  CHECK(next.plan().feasible);
  CHECK_FALSE(at::hasThreadLocalCallbacks());
}

TEST_CASE("A measurement by hand in a backward does not end one that runs", "[budget][auto][cpu]") {
  const Layers layers;
  const auto planned = auto_checkpoint({.name = "layers", .memory_budget = "50%"})(layers);
  const at::Tensor y = planned(rows(64));
  std::string error;
  y.register_hook([&](const at::Tensor& /*grad*/) {
    const at::AutoGradMode grad(true);
    error = error_text([&] { profile({.name = "by hand", .steps = 1})(layers)(rows(64)); });
  });
  y.backward();
  CHECK_THAT(error, ContainsSubstring("expected no other measurement in the process"));
  for (int i = 0; i < 5; ++i) check_step(planned, layers, rows(64));
  CHECK(planned.plan().feasible);
}

TEST_CASE("Inside of a region it is a plain call", "[budget][auto]") {
  const Layers layers;
  const auto planned = auto_checkpoint({.name = "layers", .memory_budget = "50%"})(layers);
  const auto outer = checkpoint({.name = "outer"})([&](const at::Tensor& x) { return planned(x); });
  for (int i = 0; i < 3; ++i) check_step(outer, layers, rows(64));
  const torch::NoGradGuard no_grad;
  CHECK(same_bits(planned(rows(64)), layers(rows(64))));
}

TEST_CASE("What the function throws passes, and the next steps are measured", "[budget][auto]") {
  const Layers layers;
  bool fails = true;
  const auto planned =
      auto_checkpoint({.name = "layers", .memory_budget = "50%"})([&](const at::Tensor& x) {
        const at::Tensor loss = layers(x);
        TORCH_CHECK(!fails, "on purpose");
        return loss;
      });
  for (int i = 0; i < 6; ++i) {
    fails = true;
    CHECK_THAT(error_text([&] { planned(rows(64)); }), ContainsSubstring("on purpose"));
    CHECK(memory_report().bytes == 0);
    fails = false;
    check_step(planned, layers, rows(64));
  }
  CHECK(planned.plan().feasible);
}

TEST_CASE("What no tape can replay says what to do, in later steps too", "[budget][auto]") {
  const Layers layers;
  bool has_backward = false;
  const auto planned =
      auto_checkpoint({.name = "layers", .memory_budget = "50%"})([&](const at::Tensor& x) {
        if (has_backward) torch::autograd::grad({x.square().sum()}, {x});
        return layers(x);
      });
  const at::Tensor x = rows(64).requires_grad_();
  for (int i = 0; i < 5; ++i) {
    has_backward = true;
    CHECK_THAT(error_text([&] { planned(x); }),
               ContainsSubstring("[auto_checkpoint] 'layers': steps within a budget run again"));
    has_backward = false;
    check_step(planned, layers, x);
  }
}

TEST_CASE("Budgets that cannot be are refused", "[budget][auto]") {
  const Layers layers;
  const auto error_for = [&](const std::string& budget) {
    return error_text(
        [&] { auto_checkpoint({.name = "layers", .memory_budget = budget})(layers); });
  };
  ::unsetenv("REMAT_MEMORY_BUDGET");
  CHECK_THAT(error_for(""), ContainsSubstring("set REMAT_MEMORY_BUDGET"));
  for (const char* const text : {"many", "60", "fraction:1.5", "fraction:", "device:60%", "-1GB"})
    CHECK_THAT(error_for(text), ContainsSubstring("fraction:0 to fraction:1"));
  const auto planned = auto_checkpoint({.name = "layers", .memory_budget = "100B"})(layers);
  const std::string error = error_text([&] {
    for (int i = 0; i < 4; ++i) step(planned, layers.weight, rows(64));
  });
  CHECK_THAT(error, ContainsSubstring("'layers': memory_budget: expected "));
  CHECK_THAT(error, ContainsSubstring("got 100 (\"100B\")"));
}

}  // namespace remat
