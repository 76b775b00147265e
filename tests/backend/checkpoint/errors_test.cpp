// SPDX-License-Identifier: BSD-3-Clause

// Errors that reach the user from backward: their text, and that they leave nothing behind.
#include <remat/engine/region.h>
#include <remat/forward/forward_scope.h>
#include <remat/remat.h>

#include "support/catch.h"

#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/torch.h>

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
using remat::is_recomputing;
using Tensor = at::Tensor;

remat::CheckpointOptions named(bool early_stop = true) {
  remat::CheckpointOptions options;
  options.name = "errors";
  options.early_stop = early_stop;
  return options;
}

Tensor input() {
  return torch::rand({4, 4}).requires_grad_();
}

// Returns the error of the backward through fn(input), and checks that it leaves no scope open.
// Every fn draws random numbers before its replay fails.
std::string backward_error(const std::function<Tensor(const Tensor&)>& fn,
                           const remat::CheckpointOptions& options = named()) {
  const Tensor loss = checkpoint(options)([fn](const Tensor& x) {
                        return fn(torch::dropout(x, 0.5, true));
                      })(input())
                          .sum();
  return error_text([&] { loss.backward(); });
}

constexpr const char* kRemedy =
    " The function did something else when it ran again: state that it reads has changed (a "
    "training or requires_grad flag, a cache, a counter, a random number not from a generator of "
    "LibTorch). Make it depend on its arguments, or keep that state with a StateHook "
    "(recompute_state_hooks in Python).";

// Dropout saves one mask, in slot 0. The next saved tensor has slot 1.
TEST_CASE("Another shape in the replay is an error with both, and a remedy", "[backend][errors]") {
  const auto fn = [](const Tensor& x) { return (is_recomputing() ? x.slice(0, 0, 2) : x).sin(); };
  CHECK_THAT(backward_error(fn),
             ContainsSubstring(remat::on_default_device(
                 std::string("[replay] region 'errors', slot 1: expected float32 [4, 4] on "
                             "cpu as in the forward, got float32 [2, 4] on cpu.") +
                 kRemedy)));
}

TEST_CASE("Another dtype in the replay is an error with both", "[backend][errors]") {
  const auto fn = [](const Tensor& x) { return (is_recomputing() ? x.to(at::kDouble) : x).sin(); };
  CHECK_THAT(backward_error(fn),
             ContainsSubstring(remat::on_default_device(
                 "slot 1: expected float32 [4, 4] on cpu as in the forward, got float64 "
                 "[4, 4] on cpu.")));
}

TEST_CASE("Another device in the replay is an error with both", "[backend][errors]") {
  const auto fn = [](const Tensor& x) { return (is_recomputing() ? x.to(at::kMeta) : x).sin(); };
  CHECK_THAT(backward_error(fn),
             ContainsSubstring(remat::on_default_device(
                 "slot 1: expected float32 [4, 4] on cpu as in the forward, got float32 "
                 "[4, 4] on meta.")));
}

TEST_CASE("Without determinism checks a slot takes no tensor of another type or op",
          "[backend][errors]") {
  remat::CheckpointOptions options = named();
  options.determinism = remat::Determinism::kNone;
  const auto to_double = [](const Tensor& x) {
    return (is_recomputing() ? x.to(at::kDouble) : x).sin();
  };
  CHECK_THAT(backward_error(to_double, options),
             ContainsSubstring("slot 1: expected float32") && ContainsSubstring("got float64"));
  const auto other = [](const Tensor& x) { return is_recomputing() ? x.cos() : x.sin(); };
  CHECK_THAT(backward_error(other, options), ContainsSubstring("Another op has saved it."));
  const auto asked = [](const Tensor& x) { return (is_recomputing() ? x * 2 : x * 3).sin(); };
  CHECK_NOTHROW(checkpoint(options)(asked)(input()).sum().backward());
}

TEST_CASE("Fewer saved tensors in the replay are an error with both counts", "[backend][errors]") {
  const auto fn = [](const Tensor& x) { return is_recomputing() ? x.sin() : x.sin().cos(); };
  for (const bool early_stop : {true, false}) {
    CHECK_THAT(
        backward_error(fn, named(early_stop)),
        ContainsSubstring(remat::on_default_device(
            std::string(
                "[replay] region 'errors', slot 2: expected float32 [4, 4] on cpu as in the "
                "forward, got the end of the function. The forward saved 3 tensors, the replay "
                "2.") +
            kRemedy)));
  }
}

TEST_CASE("More saved tensors in the replay are an error, where the function runs to its end",
          "[backend][errors]") {
  const auto fn = [](const Tensor& x) { return is_recomputing() ? x.sin().cos() : x.sin(); };
  CHECK_THAT(backward_error(fn, named(/*early_stop=*/false)),
             ContainsSubstring(remat::on_default_device(
                 std::string(
                     "[replay] region 'errors', slot 2: expected the end of the function as in the "
                     "forward, got float32 [4, 4] on cpu. The replay saved more tensors.") +
                 kRemedy)));
  CHECK_NOTHROW(checkpoint(named())(fn)(input()).sum().backward());  // ends before the extra tensor
}

TEST_CASE("A mismatch is a ReplayMismatch, and that is a c10::Error", "[backend][errors]") {
  const auto fn = [](const Tensor& x) { return (is_recomputing() ? x.slice(0, 0, 2) : x).sin(); };
  CHECK_THROWS_AS(checkpoint()(fn)(input()).sum().backward(), remat::ReplayMismatch);
  CHECK_THROWS_AS(checkpoint()(fn)(input()).sum().backward(), c10::Error);
  CHECK_THROWS_WITH(checkpoint()(fn)(input()).sum().backward(),
                    ContainsSubstring("[replay] region without a name, slot 0:"));
}

TEST_CASE("A mismatch that the function catches is raised all the same", "[backend][errors]") {
  const auto fn = [](const Tensor& x) {
    try {
      return (is_recomputing() ? x.slice(0, 0, 2) : x).sin();
    } catch (const std::exception&) {
      return x.sin();
    }
  };
  CHECK_THAT(backward_error(fn),
             ContainsSubstring(remat::on_default_device(
                 "slot 1: expected float32 [4, 4] on cpu as in the forward, got float32 "
                 "[2, 4] on cpu.")));
}

TEST_CASE("A mismatch in an inner region names that region", "[backend][errors]") {
  const auto fn = [](const Tensor& x) {
    remat::CheckpointOptions inner;
    inner.name = "inner";
    return checkpoint(inner)(
        [](const Tensor& t) { return (is_recomputing() ? t.slice(0, 0, 2) : t).sin(); })(x);
  };
  CHECK_THAT(backward_error(fn),
             ContainsSubstring(remat::on_default_device(
                 "[replay] region 'inner', slot 0: expected float32 [4, 4] on cpu")));
}

TEST_CASE("An error of LibTorch in the replay gets the region's name and keeps its type and text",
          "[backend][errors]") {
  const auto fn = [](const Tensor& x) {
    TORCH_CHECK_INDEX(!is_recomputing(), "no such expert");
    return x.sin();
  };
  CHECK_THAT(backward_error(fn),
             ContainsSubstring("no such expert") &&
                 ContainsSubstring("[replay] region 'errors': raised when its function ran again"));
  CHECK_THROWS_AS(checkpoint()(fn)(input()).sum().backward(), c10::IndexError);
}

TEST_CASE("An error below an inner region names the region that replays", "[backend][errors]") {
  const auto fn = [](const Tensor& x) {
    TORCH_CHECK(!is_recomputing(), "no such expert");
    return x.sin();
  };
  const auto outer = [fn](const Tensor& x) {
    remat::CheckpointOptions inner;
    inner.name = "inner";
    return checkpoint(inner)(fn)(x).cos();
  };
  CHECK_THAT(backward_error(outer),
             ContainsSubstring("no such expert") && ContainsSubstring("region 'errors'"));
}

TEST_CASE("Out of memory passes a replay untouched", "[backend][errors]") {
  const auto fn = [](const Tensor& x) {
    TORCH_CHECK_WITH(OutOfMemoryError, !is_recomputing(), "no memory");
    return x.sin();
  };
  const Tensor loss = checkpoint(named())(fn)(input()).sum();
  CHECK_THROWS_AS(loss.backward(), c10::OutOfMemoryError);
  CHECK_THAT(error_text([&] { loss.backward(); }), Catch::Equals("no memory"));
}

TEST_CASE("A std::exception of the function passes a replay untouched", "[backend][errors]") {
  const auto fn = [](const Tensor& x) {
    if (is_recomputing()) throw std::out_of_range("mine");
    return torch::dropout(x, 0.5, true).sin();
  };
  const Tensor loss = checkpoint()(fn)(input()).sum();
  const auto stream =
      remat::GeneratorState::read(at::globalContext().defaultGenerator(remat::default_device()));
  CHECK_THROWS_AS(loss.backward(), std::out_of_range);
  CHECK_THROWS_WITH(loss.backward(), Catch::Equals("mine"));
  CHECK_FALSE(is_recomputing());
  CHECK(remat::Scope::current() == nullptr);
  CHECK(stream.is_current());
  CHECK(same_bits(dropout_step(true), dropout_step(false)));
}

TEST_CASE(
    "An exception that is not a std::exception cannot pass through autograd and is reported "
    "instead",
    "[backend][errors]") {
  struct Mine {};
  const auto fn = [](const Tensor& x) {
    if (is_recomputing()) throw Mine();
    return x.sin();
  };
  CHECK_THAT(backward_error(fn),
             ContainsSubstring("[replay] region 'errors': expected its function to throw "
                               "std::exceptions only when it runs again, got something else. Throw "
                               "a std::exception."));
}

TEST_CASE("A graph whose replay has failed replays again, once what failed is mended",
          "[backend][errors]") {
  const auto broken = std::make_shared<bool>(true);
  const auto fn = [broken](const Tensor& x) {
    TORCH_CHECK(!*broken || !is_recomputing(), "broken");
    return x.sin().exp();
  };
  const Tensor x = input();
  const Tensor loss = checkpoint()(fn)(x).sum();
  error_text([&] { loss.backward(); });
  *broken = false;
  loss.backward();
  CHECK(same_bits(x.grad(), torch::autograd::grad({x.sin().exp().sum()}, {x})[0]));
}

// Asks for its saved tensor a second time if the first attempt fails, and removes the fault before
// it asks again.
struct AsksAgain : torch::autograd::Function<AsksAgain> {
  static inline bool broken = false;
  static inline int failures = 0;

  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    try {
      ctx->get_saved_variables();
    } catch (const c10::Error&) {
      ++failures;
      broken = false;
    }
    return {grads[0] * 2 * ctx->get_saved_variables()[0]};
  }
};

TEST_CASE("A node that catches a failed replay may ask again in the same backward",
          "[backend][errors]") {
  Tensor inside;  // a backward from here passes none of the region's last nodes
  const auto fn = [&inside](const Tensor& x) {
    TORCH_CHECK(!AsksAgain::broken, "broken");
    inside = AsksAgain::apply(x.sin());
    return inside.exp();
  };
  const Tensor x = input();
  const Tensor y = checkpoint()(fn)(x);
  const Tensor forward = inside;
  AsksAgain::broken = true;
  AsksAgain::failures = 0;
  const Tensor grad = torch::autograd::grad({forward.sum()}, {x})[0];
  CHECK(AsksAgain::failures == 1);
  CHECK(same_bits(grad, torch::autograd::grad({AsksAgain::apply(x.sin()).sum()}, {x})[0]));
}

TEST_CASE("A backward through the region itself inside its replay is an error",
          "[backend][errors]") {
  const auto result = std::make_shared<Tensor>();
  const auto fn = [result](const Tensor& x) {
    if (is_recomputing()) result->sum().backward({}, /*retain_graph=*/true);
    return x.sin();
  };
  *result = checkpoint(named())(fn)(input());
  CHECK_THAT(error_text([&] { result->sum().backward(); }),
             ContainsSubstring("[replay] region 'errors': expected its function to finish its "
                               "replay, got a backward through this same region inside it. Do not "
                               "call backward or grad, in the region's function, on a result of "
                               "the region itself."));
  *result = Tensor();
}

TEST_CASE("A second backward without retain_graph is autograd's own error", "[backend][errors]") {
  const Tensor loss =
      checkpoint(named())([](const Tensor& x) { return x.sin().exp(); })(input()).sum();
  loss.backward();
  CHECK_THAT(error_text([&] { loss.backward(); }),
             ContainsSubstring("Trying to backward through the graph a second time"));
}

TEST_CASE("A write between forward and backward is autograd's error with region, slot and remedy",
          "[backend][errors]") {
  Tensor w = torch::ones({4, 4});
  const Tensor y = checkpoint(named())([w](const Tensor& x) { return x.sin() * w; })(input());
  w.add_(1);
  CHECK_THAT(
      error_text([&] { y.sum().backward(); }),
      ContainsSubstring(remat::on_default_device(
          "one of the variables needed for gradient computation has been modified by an inplace "
          "operation: [float32 [4, 4] on cpu] is at version 1; expected version 0 instead. "
          "[replay] region 'errors', slot 1, op aten::mul.Tensor: expected the tensor from outside "
          "the region as the forward read it. Do not write it between forward and backward, or "
          "pass a clone.")));
}

TEST_CASE("A write to a saved output is autograd's error with region, slot and remedy",
          "[backend][errors]") {
  const Tensor y = checkpoint(named())([](const Tensor& x) { return x.exp(); })(input());
  y.detach().add_(1);
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring(remat::on_default_device(
                 "modified by an inplace operation: [float32 [4, 4] on cpu] is at "
                 "version 1; expected version 0 instead. [replay] region 'errors', "
                 "slot 0: expected the tensor as the forward saved it. Do not write "
                 "it between forward and backward, or save a clone.")));
}

// Does with the pre-hooks of y's node what compiled autograd does with them.
void compile_pre_hooks(const Tensor& y) {
  torch::dynamo::autograd::AutogradCompilerCall compiler(
      torch::dynamo::autograd::SizeInput::STATIC);
  torch::dynamo::autograd::NodeCall call(0, y.grad_fn());
  torch::dynamo::autograd::CompiledNodeArgs args(compiler, call);
  for (const auto& hook : y.grad_fn()->pre_hooks()) hook->compiled_args(args);
}

TEST_CASE("Compiled autograd is refused with the region's name", "[backend][errors]") {
  const Tensor y = checkpoint(named())([](const Tensor& x) { return x.sin(); })(input());
  CHECK_THAT(
      error_text([&] { compile_pre_hooks(y); }),
      ContainsSubstring("[checkpoint] region 'errors': expected a backward by autograd's engine, "
                        "got one by compiled autograd, which takes no hooks of C++. Run backward "
                        "outside of it."));

  remat::ForwardScope scope(remat::Region::make({.name = "errors"}), {});
  const auto hook = scope.make_hooks();
  CHECK_THROWS_WITH(
      hook->retrieve_unpack_hook_data(),
      ContainsSubstring(
          "[checkpoint] region 'errors': expected a backward by autograd's engine, got one by "
          "compiled autograd, which takes no saved-tensor hooks of C++."));
}

}  // namespace
