// SPDX-License-Identifier: BSD-3-Clause

// Errors at the call: options, functions, hooks and user state that are invalid or that fail.
#include <remat/remat.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <any>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/default_device.h"
#include "support/unwound.h"

namespace {

using remat::checkpoint;
using Tensor = at::Tensor;

Tensor misused_input() {
  return torch::ones({4, 4}).requires_grad_();
}

Tensor sine(const Tensor& x) {
  return x.sin();
}

remat::CheckpointOptions named_outer() {
  remat::CheckpointOptions options;
  options.name = "misuse";
  return options;
}

std::any keep(const Tensor& tensor) {
  return tensor.clone();
}
Tensor give_back(const std::any& kept) {
  return std::any_cast<Tensor>(kept);
}

// A hook that counts its calls, and fails on demand.
class TestHook final : public remat::StateHook {
 public:
  std::any snapshot() override {
    TORCH_CHECK(++snapshots != failing_snapshot, "snapshot failed");
    return value;
  }
  void restore(const std::any& state) override {
    TORCH_CHECK(++restores != failing_restore, "restore failed");
    value = std::any_cast<int>(state);
  }

  int value = 0;
  int snapshots = 0;
  int restores = 0;
  int failing_snapshot = 0;
  int failing_restore = 0;
};

TEST_CASE("An empty function is refused with the region's name", "[backend][misuse]") {
  const char* const text =
      "[checkpoint] region 'misuse': fn: expected a function, got an empty one. Set it before the "
      "call.";
  CHECK_THAT(error_text([] { checkpoint(named_outer())(std::function<Tensor(const Tensor&)>()); }),
             ContainsSubstring(text));
  CHECK_THAT(error_text([] {
               checkpoint(named_outer())(static_cast<Tensor (*)(const Tensor&)>(nullptr));
             }),
             ContainsSubstring(text));
  CHECK_THAT(error_text([] { checkpoint(named_outer())(torch::nn::Linear(nullptr)); }),
             ContainsSubstring(text));
  CHECK_THROWS_AS(checkpoint()(std::function<Tensor(const Tensor&)>()), c10::ValueError);
}

TEST_CASE("An undefined generator is refused with its index", "[backend][misuse]") {
  remat::CheckpointOptions options = named_outer();
  options.generators = {at::make_generator<at::CPUGeneratorImpl>(1), at::Generator()};
  const char* const rest =
      "region 'misuse': generators[1]: expected a generator, got an undefined one. Make it with "
      "at::make_generator.";
  CHECK_THAT(error_text([&] { checkpoint(options); }),
             ContainsSubstring(std::string("[checkpoint] ") + rest));
  CHECK_THAT(error_text([&] { remat::checkpoint_sequential(2, options); }),
             ContainsSubstring(std::string("[checkpoint_sequential] ") + rest));
}

TEST_CASE("A null state hook is refused with its index", "[backend][misuse]") {
  remat::CheckpointOptions options = named_outer();
  options.state_hooks = {remat::buffer_hook({}), nullptr};
  CHECK_THAT(error_text([&] { checkpoint(options); }),
             ContainsSubstring("[checkpoint] region 'misuse': state_hooks[1]: expected a "
                               "StateHook, got null. Leave it out."));
}

TEST_CASE("Saved-tensor hooks without pack or unpack are refused, with who was given them",
          "[backend][misuse]") {
  remat::CheckpointOptions options = named_outer();
  options.saved_tensors_hooks = remat::SavedTensorsHooks{nullptr, give_back};
  CHECK_THAT(
      error_text([&] { checkpoint(options); }),
      ContainsSubstring(
          "[checkpoint] saved_tensors_hooks: expected a pack function, got none. Set pack."));
  options.saved_tensors_hooks = remat::SavedTensorsHooks{keep, nullptr};
  CHECK_THAT(
      error_text([&] { remat::checkpoint_sequential(2, options); }),
      ContainsSubstring(
          "[checkpoint_sequential] saved_tensors_hooks: expected an unpack function, got none. Set "
          "unpack."));
  CHECK_THAT(error_text([] {
               remat::SavedTensorsHooksGuard guard({nullptr, give_back});
             }),
             ContainsSubstring("[SavedTensorsHooksGuard] saved_tensors_hooks: expected a pack "
                               "function, got none. Set pack."));
}

TEST_CASE("A number of segments that the layers do not have is refused with the range",
          "[backend][misuse]") {
  const std::vector<std::function<Tensor(const Tensor&)>> layers(3, sine);
  for (const int64_t segments : {0, -1, 4}) {
    CHECK_THAT(error_text([&] { remat::checkpoint_sequential(segments)(layers); }),
               ContainsSubstring(
                   "[checkpoint_sequential] segments: expected 1 to 3, the number of layers, got " +
                   std::to_string(segments) + "."));
  }
}

TEST_CASE("A buffer hook refuses a tensor that is not a buffer and names its index",
          "[backend][misuse]") {
  const Tensor buffer = torch::zeros({2});
  CHECK_THAT(error_text([&] {
               remat::buffer_hook({buffer, Tensor()});
             }),
             ContainsSubstring("[buffer_hook] buffer 1: expected a tensor, got an undefined one."));
  CHECK_THAT(error_text([&] {
               remat::buffer_hook({buffer, misused_input()});
             }),
             ContainsSubstring("[buffer_hook] buffer 1: expected a tensor without gradient, got "
                               "one that requires grad. Pass buffers, not parameters."));
}

// Returns the error of a backward that unpacks with `unpack`.
std::string unpack_error(const std::function<Tensor(const std::any&)>& unpack) {
  Tensor loss;
  {
    const remat::SavedTensorsHooksGuard guard({keep, unpack});
    loss = checkpoint(named_outer())(sine)(misused_input() * 2).sum();
  }
  return error_text([&] { loss.backward(); });
}

TEST_CASE("Unpack must return a tensor like the one packed", "[backend][misuse]") {
  CHECK_THAT(unpack_error([](const std::any& kept) { return give_back(kept).slice(0, 0, 2); }),
             ContainsSubstring(remat::on_default_device(
                 "[saved_tensors_hooks] unpack: expected float32 [4, 4] on cpu, got "
                 "float32 [2, 4] on cpu. Return a tensor equal to the one that pack "
                 "was given.")));
  CHECK_THAT(unpack_error([](const std::any& kept) { return give_back(kept).to(at::kDouble); }),
             ContainsSubstring(remat::on_default_device(
                 "expected float32 [4, 4] on cpu, got float64 [4, 4] on cpu.")));
  CHECK_THAT(unpack_error([](const std::any&) { return Tensor(); }),
             ContainsSubstring(remat::on_default_device(
                 "[saved_tensors_hooks] unpack: expected a float32 [4, 4] on cpu "
                 "tensor, got an undefined one. Return what pack was given.")));
}

TEST_CASE("Hooks that keep the tensor itself raise when it was written", "[backend][misuse]") {
  const remat::SavedTensorsHooks same{[](const Tensor& tensor) -> std::any { return tensor; },
                                      give_back};
  const Tensor w = torch::ones({4, 4});
  Tensor loss;
  {
    const remat::SavedTensorsHooksGuard guard(same);
    loss = (misused_input() * w).sum();
  }
  w.add_(1);
  CHECK_THAT(error_text([&] { loss.backward(); }),
             ContainsSubstring(remat::on_default_device(
                 "modified by an inplace operation: [float32 [4, 4] on cpu] is at "
                 "version 1; expected version 0 instead. [saved_tensors_hooks] pack "
                 "kept the tensor itself: return a copy, or do not write it before "
                 "backward.")));
}

TEST_CASE(
    "An error of pack reaches the caller of the forward, one of unpack the caller of backward",
    "[backend][misuse]") {
  remat::CheckpointOptions options = named_outer();
  const auto failing_pack = [](const Tensor&) -> std::any { TORCH_CHECK(false, "pack failed"); };
  options.saved_tensors_hooks = remat::SavedTensorsHooks{failing_pack, give_back};
  CHECK_THAT(error_text([&] { checkpoint(options)(sine)(misused_input()); }),
             ContainsSubstring("pack failed"));
  CHECK_THAT(unpack_error([](const std::any&) -> Tensor { TORCH_CHECK(false, "unpack failed"); }),
             ContainsSubstring("unpack failed"));
}

TEST_CASE("An error of a function in the forward passes through and leaves nothing behind",
          "[backend][misuse]") {
  const Tensor x = misused_input();
  const auto token = std::make_shared<int>();
  const auto fn = [token](const Tensor& t) {
    const Tensor y = checkpoint()(sine)(t).exp();
    TORCH_CHECK(false, "forward failed");
    return y;
  };
  const remat::MemoryMeter meter;
  CHECK_THROWS_WITH(checkpoint(named_outer())(fn)(x), ContainsSubstring("forward failed"));
  CHECK(meter.current_bytes(remat::default_device()) == 0);
  CHECK(token.use_count() == 2);  // held here and in fn
  CHECK_THAT(error_text([&] { checkpoint(named_outer())(fn)(x); }),
             Catch::Equals("forward failed"));
}

TEST_CASE("A state hook that fails in the forward stops the region before its function",
          "[backend][misuse]") {
  const auto hook = std::make_shared<TestHook>();
  hook->failing_snapshot = 1;
  remat::CheckpointOptions options = named_outer();
  options.state_hooks = {hook};
  int runs = 0;
  const auto fn = [&runs](const Tensor& x) {
    ++runs;
    return x.sin();
  };
  CHECK_THAT(error_text([&] { checkpoint(options)(fn)(misused_input()); }),
             ContainsSubstring("snapshot failed"));
  CHECK(runs == 0);
}

TEST_CASE("A state hook that fails in the replay does not keep the others from being restored",
          "[backend][misuse]") {
  // A replay: snapshot of both hooks, restore of both to the state at entry (restores 1), restore
  // of both to the present state (2).
  const auto good = std::make_shared<TestHook>();
  const auto bad = std::make_shared<TestHook>();
  remat::CheckpointOptions options = named_outer();
  options.state_hooks = {good, bad};
  const auto fn = [good](const Tensor& x) {
    ++good->value;
    return x.sin().exp();
  };
  const Tensor loss = checkpoint(options)(fn)(misused_input()).sum();
  CHECK(good->value == 1);
  good->value = 7;
  SECTION("before its function") {
    bad->failing_restore = 1;
    CHECK_THAT(error_text([&] { loss.backward(); }), ContainsSubstring("restore failed"));
  }
  SECTION("after its function") {
    bad->failing_restore = 2;
    CHECK_THAT(error_text([&] { loss.backward(); }), ContainsSubstring("restore failed"));
  }
  CHECK(good->value == 7);
  CHECK(good->restores == 2);
}

TEST_CASE("User state is that of the present again after a replay that failed",
          "[backend][misuse]") {
  const auto hook = std::make_shared<TestHook>();
  remat::CheckpointOptions options = named_outer();
  options.state_hooks = {hook};
  const auto fn = [hook](const Tensor& x) {
    TORCH_CHECK(!remat::is_recomputing(), "replay failed");
    ++hook->value;
    return x.sin();
  };
  const Tensor loss = checkpoint(options)(fn)(misused_input()).sum();
  hook->value = 7;
  CHECK_THAT(error_text([&] { loss.backward(); }), ContainsSubstring("replay failed"));
  CHECK(hook->value == 7);
}

}  // namespace
