// SPDX-License-Identifier: BSD-3-Clause

// State that a replay must find as its forward found it: random streams, dtypes, flags, autocast,
// and the user's state.
#include <remat/engine/generator_state.h>
#include <remat/engine/scope.h>
#include <remat/remat.h>

#include "support/catch.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <any>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/default_device.h"
#include "support/same_bits.h"

namespace {

using remat::checkpoint;
using Tensor = at::Tensor;

Tensor small_leaf() {
  return torch::linspace(-1, 1, 1024).requires_grad_();
}

const at::Generator& default_generator() {
  return at::globalContext().defaultGenerator(remat::default_device());
}

Tensor dropout(const Tensor& x) {
  return torch::dropout(x.sin(), 0.5, true).exp();
}

/// Checks that a step of `fn` in a region, with random draws before and after its backward, is
/// bitwise equal to a plain step.
void check_numbers(const std::function<Tensor(const Tensor&)>& fn) {
  const auto step = [&](bool checkpointed) {
    torch::manual_seed(1);
    const Tensor x = small_leaf();
    const Tensor y = checkpointed ? checkpoint()(fn)(x) : fn(x);
    const Tensor between = torch::rand({8});
    y.sum().backward();
    return std::vector<Tensor>{x.grad(), between, torch::randn({8})};
  };
  const std::vector<Tensor> plain = step(false);
  const std::vector<Tensor> ours = step(true);
  for (size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], ours[i]));
}

TEST_CASE("Random ops draw the same numbers again, and the stream goes on as without remat",
          "[backend][rng]") {
  check_numbers(dropout);
}

TEST_CASE("Numbers are the same also where the function puts the generator back",
          "[backend][rng]") {
  const auto forked = [](const Tensor& x) {
    at::Generator generator = default_generator();
    const Tensor state = generator.get_state();
    const Tensor y = dropout(x);
    generator.set_state(state);
    return y;
  };
  check_numbers(forked);
}

TEST_CASE("Without preserve_rng a replay draws new numbers from the stream", "[backend][rng]") {
  remat::CheckpointOptions options;
  options.preserve_rng = false;
  options.early_stop = false;
  const Tensor x = small_leaf();
  std::vector<Tensor> drawn;
  const auto fn = [&drawn](const Tensor& t) {
    drawn.push_back(torch::rand({8}));
    return t.sin();
  };
  checkpoint(options)(fn)(x).sum().backward();
  REQUIRE(drawn.size() == 2);
  CHECK_FALSE(same_bits(drawn[0], drawn[1]));
}

TEST_CASE("A named generator is restored if it is an option, and refused if not",
          "[backend][rng]") {
  at::Generator own = default_generator().clone();
  std::vector<Tensor> drawn;
  const auto fn = [&drawn, own](const Tensor& t) {
    drawn.push_back(at::rand({8}, own));
    return t.sin();
  };
  const auto step = [&](const remat::CheckpointOptions& options) {
    drawn.clear();
    const Tensor loss = checkpoint(options)(fn)(small_leaf()).sum();
    const auto after_forward = remat::GeneratorState::read(own);
    loss.backward();
    REQUIRE(drawn.size() == 2);
    return same_bits(drawn[0], drawn[1]) && after_forward.is_current();
  };
  CHECK(step({.name = "r", .generators = {own}, .early_stop = false}));
  CHECK_FALSE(step({.name = "r", .preserve_rng = false, .early_stop = false}));
  CHECK_THROWS_WITH(step({.name = "r"}),
                    ContainsSubstring("region 'r', op aten::rand.generator: "
                                      "expected a default generator or one of"));
}

TEST_CASE("The default dtype of the forward is that of the replay, and the present one returns",
          "[backend][state]") {
  std::vector<caffe2::TypeMeta> seen;
  const auto fn = [&seen](const Tensor& x) {
    seen.push_back(c10::get_default_dtype());
    return x.sin() * torch::full({1024}, 0.5);
  };
  const Tensor loss = checkpoint()(fn)(small_leaf()).sum();
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  loss.backward();
  CHECK(c10::get_default_dtype() == caffe2::TypeMeta::Make<double>());
  c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
  CHECK(seen == std::vector<caffe2::TypeMeta>(2, caffe2::TypeMeta::Make<float>()));
}

TEST_CASE(
    "The deterministic flags of the forward are those of the replay, and the present ones return",
    "[backend][state]") {
  at::Context& context = at::globalContext();
  std::vector<bool> seen;
  const auto fn = [&](const Tensor& x) {
    seen.push_back(context.deterministicAlgorithms());
    seen.push_back(context.userEnabledMathSDP());
    return x.sin();
  };
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setSDPUseMath(false);
  const Tensor loss = checkpoint()(fn)(small_leaf()).sum();
  context.setDeterministicAlgorithms(false, false);
  context.setSDPUseMath(true);
  loss.backward();
  CHECK(seen == std::vector<bool>{true, false, true, false});
  CHECK_FALSE(context.deterministicAlgorithms());
  CHECK(context.userEnabledMathSDP());
}

TEST_CASE("A replay runs under the forward's autocast, and the present one returns",
          "[backend][state]") {
  const auto fn = [](const Tensor& x) { return x.view({32, 32}).matmul(x.view({32, 32})).sin(); };
  const c10::DeviceType device = remat::default_device().type();
  const auto step = [&](bool checkpointed) {
    const Tensor x = small_leaf();
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    const Tensor y = checkpointed ? checkpoint()(fn)(x) : fn(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device, false);
    y.sum().backward();
    CHECK_FALSE(at::autocast::is_autocast_enabled(device));
    CHECK(y.scalar_type() == at::kBFloat16);
    return x.grad();
  };
  CHECK(same_bits(step(false), step(true)));
}

TEST_CASE("Gradients are recorded in a replay although backward runs without", "[backend][state]") {
  std::vector<bool> seen;
  const auto fn = [&seen](const Tensor& x) {
    seen.push_back(at::GradMode::is_enabled());
    return x.sin();
  };
  checkpoint()(fn)(small_leaf()).sum().backward();
  CHECK(seen == std::vector<bool>{true, true});
}

TEST_CASE("Buffers are as after one forward, and a replay reads them as the forward did",
          "[backend][state]") {
  const auto step = [](bool checkpointed) {
    torch::manual_seed(2);
    torch::nn::BatchNorm1d norm(4);
    const Tensor x = torch::rand({8, 4}).requires_grad_();
    remat::CheckpointOptions options;
    options.early_stop = false;  // The whole function runs again.
    options.state_hooks = {
        remat::buffer_hook({norm->running_mean, norm->running_var, norm->num_batches_tracked})};
    auto fn = [norm](const Tensor& t) mutable { return norm(t).exp(); };
    const Tensor y = checkpointed ? checkpoint(options)(fn)(x) : fn(x);
    y.sum().backward();
    return std::vector<Tensor>{x.grad(), norm->running_mean, norm->running_var,
                               norm->num_batches_tracked};
  };
  const std::vector<Tensor> plain = step(false);
  const std::vector<Tensor> ours = step(true);
  for (size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], ours[i]));
}

// Records whether a region was open in any of its calls.
class WatchingHook final : public remat::StateHook {
 public:
  std::any snapshot() override {
    note();
    return {};
  }
  void restore(const std::any& /*state*/) override { note(); }
  void note() {
    ++calls;
    if (remat::Scope::current()) saw_region = true;
  }
  int calls = 0;
  bool saw_region = false;
};

TEST_CASE("User hooks run outside every region, in forward and replay", "[backend][state]") {
  const auto hook = std::make_shared<WatchingHook>();
  remat::CheckpointOptions options;
  options.state_hooks = {hook};
  const auto pack = [hook](const Tensor& t) -> std::any {
    hook->note();
    return t.clone();
  };
  const auto unpack = [hook](const std::any& kept) {
    hook->note();
    return std::any_cast<Tensor>(kept);
  };
  const auto inner = [](const Tensor& x) { return x.sin().exp(); };
  const auto call = [](const Tensor& x) { return x.sin().cos(); };
  const auto outer = [&](const Tensor& x) {
    Tensor h;
    {
      const remat::SavedTensorsHooksGuard guard({pack, unpack});
      h = remat::native_op(call, "a", remat::Policy::kSave)(x.cos());
    }
    return checkpoint(options)(inner)(h).tanh();
  };
  checkpoint(options)(outer)(small_leaf()).sum().backward();
  // Forward: 2 snapshots at entry, one after the call, and packs of cos's saved tensor and of the
  // result: 5. Replay of the outer region: snapshot, restore, unpack of the result, restore after
  // the call, snapshot of the inner forward, restore: 6. Replay of the inner region: snapshot,
  // restore of the forward's state, restore of the state before the replay: 3. Unpack for cos: 1.
  CHECK(hook->calls == 5 + 6 + 3 + 1);
  CHECK_FALSE(hook->saw_region);
}

}  // namespace
