// SPDX-License-Identifier: BSD-3-Clause

// Steps that fail at every point: the error comes out, nothing is left behind, and the next step is
// right.
#include <ATen/Context.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "faults/injector.h"
#include "faults/models.h"
#include "faults/rig.h"
#include "support/catch.h"

namespace remat::faults {
namespace {

/// A way to replay regions.
struct Engine {
  const char* name;
  ReplayEngine engine;
  bool new_names = false;
};

constexpr Engine kFunction{"function", ReplayEngine::kFunction};
constexpr Engine kTape{"tape", ReplayEngine::kTape};
/// Each step records new tapes, so each replay is compared with the forward.
constexpr Engine kNewTape{"new tape", ReplayEngine::kTape, /*new_names=*/true};

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kOp:
      return "op";
    case Kind::kAllocation:
      return "allocation";
    default:
      return "callback";
  }
}

Regions regions_for(Kind kind, const Engine& engine) {
  return {.engine = engine.engine,
          .new_names = engine.new_names,
          .callbacks = kind == Kind::kCallback ? make_callbacks() : nullptr};
}

void report(const std::string& model, Kind kind, const Engine& engine, const Tally& tally) {
  std::printf("%-8s %-8s %-10s %s\n", model.c_str(), engine.name, kind_name(kind),
              tally.str().c_str());
  std::fflush(stdout);
}

/// Checks that every point was tried and its error came out, and that nothing was wrong afterwards.
void check(Kind kind, const Engine& engine, const Tally& tally) {
  for (const std::string& complaint : tally.complaints) UNSCOPED_INFO(complaint);
  CHECK(tally.faulty_points == 0);
  CHECK(tally.tried == tally.points);
  CHECK(tally.caught + tally.past_stop == tally.tried);
  CHECK(tally.left_over == 0);
  for (const Phase phase : {Phase::kForward, Phase::kReplay, Phase::kBackward}) {
    // A replay from a tape does not call the function.
    const bool none =
        phase == Phase::kReplay && kind == Kind::kCallback && engine.engine == ReplayEngine::kTape;
    CHECK((tally.by_phase.at(static_cast<size_t>(phase)) == 0) == none);
  }
}

void fail_all(const std::string& name, Rig& rig, Kind kind, const Engine& engine,
              const Beside& beside = {}) {
  INFO(name << ", " << engine.name);
  CHECK(rig.step_difference().empty());
  const Tally tally = rig.try_all(kind, beside);
  report(name, kind, engine, tally);
  check(kind, engine, tally);
}

void fail_model(const NamedModel& model, Kind kind, const Engine& engine) {
  INFO(model.name << ", " << engine.name);
  try {
    Rig rig(model.make(), regions_for(kind, engine));
    fail_all(model.name, rig, kind, engine);
  } catch (const std::exception& error) {
    FAIL_CHECK("a step without a fault throws " << error.what());
  }
}

/// Makes all models fail with all engines; kNewTape has fewer models unless REMAT_FAULTS_ALL is
/// set.
void fail_everywhere(Kind kind) {
  const std::vector<NamedModel> all{{"gpt2", &make_gpt2},
                                    {"resnet", &make_resnet},
                                    {"lstm", &make_lstm},
                                    {"moe", &make_moe},
                                    {"nested", &make_nested}};
  const std::vector<NamedModel> some{{"moe", &make_moe}, {"nested", &make_nested}};
  for (const Engine& engine : {kFunction, kTape, kNewTape}) {
    const bool few = engine.new_names && !std::getenv("REMAT_FAULTS_ALL");
    for (const NamedModel& model : few ? some : all) fail_model(model, kind, engine);
  }
}

/// Makes a model fail while another thread trains a model of its own.
void fail_beside(Kind kind) {
  for (const Engine& engine : {kFunction, kTape}) {
    Rig other(make_mlp(), regions_for(kind, engine));
    Rig rig(make_mlp(), regions_for(kind, engine));
    fail_all("threaded", rig, kind, engine, [&] { return other.step_difference(); });
  }
}

/// Switches oneDNN off, because oneDNN goes on if an allocation fails, which hides the fault.
class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(true); }
};

/// Tests the rig itself on a model of one op.
Tally tally_of(const std::function<at::Tensor(const at::Tensor&)>& loss) {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  Rig rig({.parameters = {x},
           .buffers = {},
           .generators = {},
           .loss = [&](const Regions&) { return loss(x); }},
          {});
  return rig.try_all(Kind::kOp);
}

}  // namespace

TEST_CASE("A rig finds nothing where nothing is wrong", "[faults][rig]") {
  const Tally tally = tally_of([](const at::Tensor& x) { return x.sin().sum(); });
  CHECK(tally.points > 4);
  CHECK(tally.tried == tally.points);
  CHECK(tally.caught == tally.points);
  CHECK(tally.left_over == 0);
  CHECK(tally.faulty_points == 0);
}

TEST_CASE("The rig reports kept, lost and changed tensors", "[faults][rig]") {
  Tensors kept;
  CHECK(tally_of([&](const at::Tensor& x) {
          const at::Tensor y = x.sin();
          kept.push_back(y.detach());
          const at::Tensor loss = y.sum();
          kept.pop_back();
          return loss;
        }).left_over > 0);
  const auto swallow = [](const at::Tensor& x) {
    try {
      x.cos();
    } catch (const std::runtime_error&) {
    }
    return x.sin().sum();
  };
  const Tally swallowed = tally_of(swallow);
  CHECK(swallowed.caught + 1 == swallowed.tried);
  CHECK(swallowed.faulty_points == 1);
  bool failed = false;
  CHECK(tally_of([&](const at::Tensor& x) {
          const at::Tensor y = failed ? x.cos() : x.sin();
          failed = true;
          const at::Tensor loss = y.sum();
          failed = false;
          return loss;
        }).faulty_points > 0);
}

TEST_CASE("An exception at any op passes and leaves nothing", "[faults][op]") {
  fail_everywhere(Kind::kOp);
}

TEST_CASE("A failed allocation passes and leaves nothing", "[faults][allocation]") {
  const WithoutOneDnn plain_kernels;
  fail_everywhere(Kind::kAllocation);
}

TEST_CASE("An exception of any callback passes and leaves nothing", "[faults][callback]") {
  fail_everywhere(Kind::kCallback);
}

TEST_CASE("An exception in one thread does not reach the step of another", "[faults][threads]") {
  for (const Kind kind : {Kind::kOp, Kind::kAllocation, Kind::kCallback}) fail_beside(kind);
}

}  // namespace remat::faults
