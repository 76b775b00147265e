// SPDX-License-Identifier: BSD-3-Clause

// The lines of a trace.
#include <torch/torch.h>

#include <array>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"

namespace remat {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Saves its own result.
struct Square : torch::autograd::Function<Square> {
  static constexpr std::array saved_names{"y"};
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor y = x * x;
    ctx->save_for_backward({y});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {2 * ctx->get_saved_variables()[0].sqrt() * grads[0]};
  }
};

/// Adapts a text about tensors on the CPU and their dispatch keys to the default device.
std::string with_keys(std::string text) {
  const std::string keys = default_device().is_cpu() ? "CPU" : "CUDA";
  for (size_t at = text.find("CPU"); at != std::string::npos; at = text.find("CPU", at + 1))
    text.replace(at, 3, keys);
  return on_default_device(text);
}

/// Returns the trace of a step of `fn` in a region.
std::string trace_of(const std::function<at::Tensor(const at::Tensor&)>& fn,
                     const CheckpointOptions& options = {.name = "block"}) {
  std::ostringstream out;
  const Trace trace(out);
  checkpoint(options)(fn)(torch::ones({2, 2}).requires_grad_()).sum().backward();
  return out.str();
}

}  // namespace

TEST_CASE("A trace has a line for each op and named call", "[inspect][trace]") {
  std::ostringstream out;
  {
    const Trace trace(out);
    const at::Tensor x = torch::ones({2, 2}).requires_grad_();
    const at::Tensor w = torch::ones({2, 2}).requires_grad_();
    const at::Tensor y = checkpoint({.name = "block"})([&](const at::Tensor& in) {
      const at::Tensor h =
          native_op([&](const at::Tensor& t) { return t.mm(w); }, "mm", Policy::kSave)(in.sin());
      return (h + 1).exp() - 1;
    })(x);
    y.sum().backward();
  }
  const std::string keys = with_keys(" [CPU, AutogradCPU]");
  const std::string t = on_default_device("float32 [2, 2] on cpu requires grad");
  CHECK(out.str() ==
        "forward region 'block': aten::sin(" + t + ")" + keys + "; slot 0 dropped\n" +
            "forward region 'block': call 'mm' (SAVE) begins\n" +
            "forward region 'block': aten::mm(" + t + ", " + t + ")" + keys +
            "; in call 'mm' (SAVE); slot 1 left to the call's arguments; tensor 0 kept\n" +
            "forward region 'block': call 'mm' (SAVE) ends; slot 1 left to the call's arguments; "
            "tensor 0 kept\n" +
            "forward region 'block': aten::add.Scalar(" + t + ", 1, 1)" + keys + "\n" +
            "forward region 'block': aten::exp(" + t + ")" + keys + "; slot 2 dropped\n" +
            "forward region 'block': aten::sub.Scalar(" + t + ", 1, 1)" + keys + "\n" +
            "replay region 'block': aten::sin(" + t + ")" + keys + "; slot 0 filled\n" +
            "replay region 'block': call 'mm' (SAVE) is left out; slot 1 filled\n" +
            "replay region 'block': aten::add.Scalar(" + t + ", 1, 1)" + keys + "\n" +
            "replay region 'block': aten::exp(" + t + ")" + keys + "; slot 2 filled\n" +
            "replay region 'block': stops\n");
}

TEST_CASE("OFFLOAD calls are called so", "[inspect][trace]") {
  const std::string text = trace_of(
      [](const at::Tensor& x) {
        return native_op([](const at::Tensor& t) { return t.exp(); }, "e",
                         Policy::kOffload)(x.sin());
      },
      {.name = "block", .offload_store = host_memory_store()});
  CHECK_THAT(text, ContainsSubstring("; in call 'e' (OFFLOAD); tensor 0 kept\n"
                                     "forward region 'block': call 'e' (OFFLOAD) ends; tensor 0 "
                                     "kept\n"));
  CHECK_THAT(text, !ContainsSubstring("SAVE"));
}

TEST_CASE("Every call that begins ends, in the right order", "[inspect][trace]") {
  const std::string text = trace_of([](const at::Tensor& x) {
    const auto inner = [](const at::Tensor& t) { return t.sin().exp(); };
    const auto outer = [&](const at::Tensor& t) {
      return native_op(inner, "inner", Policy::kSave)(t.cos()).tanh();
    };
    try {
      native_op([](const at::Tensor& t) { throw std::runtime_error(t.toString()); }, "fails",
                Policy::kRecompute)(x);
    } catch (const std::runtime_error&) {
    }
    return native_op(outer, "outer", Policy::kRecompute)(x);
  });
  const std::string start = "forward region 'block': call ";
  std::string calls;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(start)) calls += line.substr(start.size()) + "\n";
  }
  CHECK(calls ==
        "'fails' (RECOMPUTE) begins\n"
        "'fails' (RECOMPUTE) throws\n"
        "'outer' (RECOMPUTE) begins\n"
        "'inner' (SAVE) begins\n"
        "'inner' (SAVE) ends; slot 1 left to the call's arguments; tensor 0 kept\n"
        "'outer' (RECOMPUTE) ends; slots 0 to 2 dropped; tensor 0 kept\n");
}

// Autograd saves the tensor after the forward has returned, so it belongs to no op.
TEST_CASE("What a custom function saves is shown", "[inspect][trace]") {
  const std::string text = trace_of(
      [](const at::Tensor& x) { return op<Square>("a", Policy::kSave)(Square::apply(x.sin())); });
  const std::string tensor = on_default_device("float32 [2, 2] on cpu");
  CHECK_THAT(text,
             ContainsSubstring("aten::mul.Tensor(") &&
                 ContainsSubstring(with_keys("[CPU, AutogradCPU]\nforward region 'block': saved "
                                             "outside of ops: " +
                                             tensor + "; slot 1 dropped\n")) &&
                 ContainsSubstring("forward region 'block': saved outside of ops: " + tensor +
                                   "; for call 'a' (SAVE); tensor 0 kept\n"
                                   "forward region 'block': call 'a' (SAVE) ends; tensor 0 "
                                   "kept\n") &&
                 ContainsSubstring("replay region 'block': saved outside of ops: " + tensor +
                                   "; slot 1 filled\n"));
}

TEST_CASE("Keys tell a tensor without a graph from one that may have one", "[inspect][trace]") {
  at::Tensor inference;
  {
    const c10::InferenceMode guard;
    inference = torch::ones({3});
  }
  const std::string text = trace_of([&](const at::Tensor& x) {
    CHECK(inference.neg().defined());
    CHECK(at::scalar_tensor(1).item<float>() == 1);
    return x.sin();
  });
  CHECK_THAT(text, ContainsSubstring(with_keys("aten::neg(float32 [3] on cpu) [CPU]\n")));
}

TEST_CASE("Regions inside regions are indented, and nothing is written without a region",
          "[inspect][trace]") {
  std::ostringstream out;
  const Trace trace(out);
  CHECK_THROWS_AS(Trace(out), c10::Error);
  const at::Tensor x = torch::ones({2}).requires_grad_();
  CHECK(x.sin().requires_grad());
  CHECK(out.str().empty());
  checkpoint({.name = "outer"})([](const at::Tensor& a) {
    return checkpoint({.name = "inner"})([](const at::Tensor& b) { return b.sin(); })(a.cos());
  })(x)
      .sum()
      .backward();
  CHECK_THAT(out.str(), ContainsSubstring("\n  forward region 'inner': aten::sin("));
  CHECK_THAT(out.str(), ContainsSubstring("\nreplay region 'outer': aten::cos("));
  CHECK_THAT(out.str(), ContainsSubstring("\nreplay region 'inner': aten::sin("));
}

}  // namespace remat
