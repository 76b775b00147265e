// SPDX-License-Identifier: BSD-3-Clause

// Tensors that SAVE calls keep for replays are released with the last replay: Note [The last
// replay].
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/same_bits.h"

namespace remat {
namespace {

using at::Tensor;

/// Calls `probe` when backward reaches it.
struct Probe : torch::autograd::Function<Probe> {
  static Tensor forward(torch::autograd::AutogradContext* /*ctx*/, const Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*ctx*/,
                                                 torch::autograd::variable_list grads) {
    if (probe) probe();
    return grads;
  }
  static inline std::function<void()> probe;
};

/// x -> 2 x. Its backward notes the memory of the saved tensor that it gets.
struct NotesSaved : torch::autograd::Function<NotesSaved> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    memory.emplace(ctx->get_saved_variables()[0].storage().getWeakStorageImpl());
    return {grads[0] * 2};
  }
  static inline std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
};

/// Two branches that share only the region's function. Bare code reads the result of each branch's
/// SAVE call, and no node saves it.
struct Step {
  int runs = 0;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> kept{};

  Tensor branch(const Tensor& x, const char* name) {
    const Tensor y = Probe::apply(x.sin());
    const auto twice = [this](const Tensor& t) {
      Tensor result = t * 2.0;
      kept.emplace_back(result.storage().getWeakStorageImpl());
      return result;
    };
    return (native_op(twice, name, Policy::kSave)(y) + y).exp();
  }

  std::tuple<Tensor, Tensor> operator()(const Tensor& x, const Tensor& y) {
    ++runs;
    Tensor first = branch(x, "first");
    return {first, branch(y, "second")};
  }

  bool all_gone() const {
    return std::all_of(kept.begin(), kept.end(), [](const auto& weak) { return weak.expired(); });
  }
};

Tensor leaf(double from) {
  return torch::linspace(from, from + 1, 5).requires_grad_();
}

/// A step, in a region or in plain code.
struct Run {
  Tensor x = leaf(0.1);
  Tensor y = leaf(0.5);
  Step step;
  Tensor first;
  Tensor second;

  Run() { std::tie(first, second) = step(x, y); }
  explicit Run(ReplayEngine replay) {
    std::tie(first, second) = checkpoint({.replay = replay})(
        [this](const Tensor& a, const Tensor& b) { return step(a, b); })(x, y);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Tensor loss() const { return first.sum() + second.sum(); }
};

bool same_gradients(const Run& run, int backwards) {
  const Run plain;
  for (int i = 0; i < backwards; ++i) plain.loss().backward({}, /*retain_graph=*/true);
  return same_bits(run.x.grad(), plain.x.grad()) && same_bits(run.y.grad(), plain.y.grad());
}

const ReplayEngine kEngines[] = {ReplayEngine::kFunction, ReplayEngine::kTape};

int runs_of(ReplayEngine engine, int replays) {
  return engine == ReplayEngine::kTape ? 1 : 1 + replays;
}

}  // namespace

TEST_CASE("The last replay frees the values that SAVE calls keep", "[backend][native_op]") {
  for (const ReplayEngine engine : kEngines) {
    INFO("engine " << static_cast<int>(engine));
    Run run(engine);
    CHECK(!run.step.all_gone());
    bool gone = false;
    Probe::probe = [&] { gone = run.step.all_gone(); };
    run.loss().backward({}, /*retain_graph=*/true);
    CHECK(!gone);
    CHECK(same_gradients(run, 1));
    run.loss().backward();
    Probe::probe = nullptr;
    CHECK(gone);
    CHECK(same_gradients(run, 2));
    CHECK(run.step.runs == runs_of(engine, 2));
  }
}

TEST_CASE("The values of the last replay are freed with their nodes", "[backend][native_op]") {
  const auto twice = [](const Tensor& t) { return t * 2; };
  for (const ReplayEngine engine : kEngines) {
    INFO("engine " << static_cast<int>(engine));
    const Tensor x = leaf(0.1);
    const Tensor y = checkpoint({.replay = engine})([&](const Tensor& t) {
      const Tensor middle = NotesSaved::apply(Probe::apply(t.sin()) + 1);
      return (native_op(twice, "call", Policy::kSave)(middle) + middle).exp();
    })(x);
    bool is_freed = false;
    NotesSaved::memory.reset();
    Probe::probe = [&] { is_freed = NotesSaved::memory->expired(); };
    y.sum().backward();
    Probe::probe = nullptr;
    CHECK(is_freed);
  }
}

TEST_CASE("A backward that passes a part of a region leaves the values for the rest",
          "[backend][native_op]") {
  for (const ReplayEngine engine : kEngines) {
    INFO("engine " << static_cast<int>(engine));
    Run run(engine);
    run.first.sum().backward();
    CHECK(run.step.all_gone());
    run.second.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    run.second.sum().backward();
    CHECK(run.step.runs == runs_of(engine, 1));
    CHECK_THROWS_WITH(run.second.sum().backward(), Catch::Contains("second time"));
    run.second = Tensor();
    run.y.mutable_grad() = run.y.grad().detach() / 2;
    CHECK(same_gradients(run, 1));
  }
}

TEST_CASE("After a backward that throws the values for the rest are there",
          "[backend][native_op]") {
  for (const ReplayEngine engine : kEngines) {
    INFO("engine " << static_cast<int>(engine));
    Run run(engine);
    Probe::probe = [] { throw std::runtime_error("thrown by a node"); };
    CHECK_THROWS_WITH(run.first.sum().backward(), Catch::Contains("thrown by a node"));
    Probe::probe = nullptr;
    run.second.sum().backward();
    const Run plain;
    plain.second.sum().backward();
    CHECK(same_bits(run.y.grad(), plain.y.grad()));
    CHECK(!run.x.grad().defined());
    CHECK(run.step.runs == runs_of(engine, 1));
  }
}

TEST_CASE("Threads that go backward through parts of a region both get their values",
          "[backend][native_op][threads]") {
  for (const ReplayEngine engine : kEngines) {
    INFO("engine " << static_cast<int>(engine));
    for (int i = 0; i < 50; ++i) {
      Run run(engine);
      std::thread other([&] { run.first.sum().backward(); });
      run.second.sum().backward();
      other.join();
      REQUIRE(same_gradients(run, 1));
      CHECK(run.step.all_gone());
    }
  }
}

}  // namespace remat
