// SPDX-License-Identifier: BSD-3-Clause

// The memory report against the tensors that are known to be held.
#include <torch/torch.h>

#include <functional>
#include <string>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"

namespace remat {
namespace {

constexpr size_t kBytes = 4 * 8 * 8;  // bytes of a float32 [8, 8]

at::Tensor input() {
  return torch::rand({8, 8}).requires_grad_().sin();
}

/// Returns exp(x) * 2; saves two tensors and names them.
struct NamedSaves : torch::autograd::Function<NamedSaves> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    auto handle = get_handle(ctx, "inner", Policy::kSave);
    const at::Tensor power = x.exp();
    const at::Tensor twice = power * 2;
    handle.save_for_backward({{"twice", twice.mul(1)}, {"power", power}});
    return handle.record_outputs(twice);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

}  // namespace

TEST_CASE("Without regions the report is empty", "[inspect][memory_report]") {
  CHECK(memory_report().str() == "remat holds 0 bytes in 0 regions\n");
}

TEST_CASE("The report names what a region holds and why", "[inspect][memory_report]") {
  const at::Tensor y = checkpoint({.name = "block"})([](const at::Tensor& x) {
    const at::Tensor a =
        native_op([](const at::Tensor& t) { return t.exp(); }, "a", Policy::kSave)(x.cos());
    const at::Tensor b =
        native_op([](const at::Tensor& t) { return t * 2; }, "b", Policy::kSave)(x.cos());
    return a.sin() + (b + 1).exp();
  })(input());
  const MemoryReport report = memory_report();
  // Kept are the argument, exp's result (saved and read: one storage), and b, which the bare add
  // reads.
  CHECK(report.bytes == 3 * kBytes);
  CHECK(report.implicit_bytes == 1 * kBytes);
  REQUIRE(report.regions.size() == 1);
  const std::string text = report.str();
  INFO(text);
  CHECK(text.find("remat holds 768 bytes in 1 region, 256 of them kept implicitly\n"
                  "region 'block': 768 bytes, ") == 0);
  CHECK_THAT(text, ContainsSubstring(on_default_device(
                       "256  argument 0           float32 [8, 8] on cpu  argument of the "
                       "function, for the replay\n")));
  CHECK_THAT(text, ContainsSubstring(on_default_device(
                       "256  a: saved.0 (result)  float32 [8, 8] on cpu  SAVE: saved "
                       "for backward\n")));
  CHECK_THAT(text, ContainsSubstring(on_default_device(
                       "  0  a: result            float32 [8, 8] on cpu  SAVE: kept "
                       "implicitly: read by aten::sin; billed above\n")));
  CHECK_THAT(text, ContainsSubstring(on_default_device(
                       "256  b: result            float32 [8, 8] on cpu  SAVE: kept "
                       "implicitly: read by aten::add.Scalar\n")));
}

TEST_CASE("The report says which result of its call a tensor is", "[inspect][memory_report]") {
  const at::Tensor y = checkpoint()([](const at::Tensor& x) {
    const auto two = [](const at::Tensor& t) { return std::make_tuple(t + 1, t.exp()); };
    const auto both = native_op(two, "two", Policy::kSave)(x.sin());
    return std::get<0>(both).cos() + std::get<1>(both);
  })(input());
  const std::string text = memory_report().str();
  INFO(text);
  CHECK_THAT(text, ContainsSubstring("two: saved.0 (result 1)  "));
  CHECK_THAT(text, ContainsSubstring("two: result 0 "));
}

TEST_CASE("Names of saved tensors follow the tensor into the SAVE call around",
          "[inspect][memory_report]") {
  const auto call = [](const at::Tensor& t) {
    const at::Tensor first = t.exp();
    return NamedSaves::apply(first);
  };
  const at::Tensor y = checkpoint({.name = "block"})([&](const at::Tensor& x) {
    return native_op(call, "a", Policy::kSave)(x.cos()).sin();
  })(input());
  const std::string text = memory_report().str();
  INFO(text);
  CHECK_THAT(text, ContainsSubstring("a: saved.0"));  // saved by exp
  CHECK_THAT(text, ContainsSubstring("a: twice"));
  CHECK_THAT(text, ContainsSubstring("a: power"));
}

TEST_CASE("The report can be asked for inside a region", "[inspect][memory_report]") {
  std::string text;
  const at::Tensor y = checkpoint({.name = "outer"})([&](const at::Tensor& x) {
    const at::Tensor a =
        native_op([](const at::Tensor& t) { return t.exp(); }, "a", Policy::kSave)(x.cos());
    if (text.empty()) text = memory_report().str();
    return a;
  })(input());
  CHECK_THAT(text, ContainsSubstring("a: saved.0"));
}

TEST_CASE("Weights are not billed, nor are views of them", "[inspect][memory_report]") {
  const at::Tensor w = torch::rand({8, 8}).requires_grad_();
  const at::Tensor y = checkpoint({.name = "block"})([&](const at::Tensor& x) {
    return native_op([&](const at::Tensor& t) { return torch::linear(t, w); }, "linear",
                     Policy::kSave)(x);
  })(input());
  CHECK(memory_report().bytes == kBytes);  // the argument
}

TEST_CASE("A leaf is called a leaf, whether it is a parameter or not", "[inspect][memory_report]") {
  const at::Tensor y =
      checkpoint()([](const at::Tensor& x) { return x.exp(); })(torch::ones({2}).requires_grad_());
  CHECK_THAT(memory_report().str(),
             ContainsSubstring("argument of the function, for the replay; a leaf that requires "
                               "grad, not billed\n"));
}

TEST_CASE("What an OFFLOAD call keeps is called so", "[inspect][memory_report]") {
  const at::Tensor y = checkpoint(
      {.name = "block", .offload_store = host_memory_store()})([](const at::Tensor& x) {
    return (native_op([](const at::Tensor& t) { return t.exp(); }, "a", Policy::kOffload)(x) + 1)
        .exp();
  })(input());
  CHECK_THAT(memory_report().str(),
             ContainsSubstring("OFFLOAD: saved for backward; held elsewhere\n") &&
                 ContainsSubstring("OFFLOAD: offloaded implicitly: read by aten::add.Scalar; held "
                                   "elsewhere\n"));
}

TEST_CASE("A region that has gone through backward is not in the report",
          "[inspect][memory_report]") {
  const at::Tensor y =
      checkpoint({.name = "block"})([](const at::Tensor& x) { return x.cos().exp(); })(input());
  CHECK(memory_report().bytes == kBytes);
  y.sum().backward();
  CHECK(memory_report().bytes == 0);
  CHECK(memory_report().regions.empty());  // although the region's result lives
}

TEST_CASE("What hooks or a store hold is not billed", "[inspect][memory_report]") {
  const at::Tensor y = checkpoint(
      {.name = "block", .offload_store = host_memory_store()})([](const at::Tensor& x) {
    return native_op([](const at::Tensor& t) { return t.exp(); }, "a", Policy::kOffload)(x.cos());
  })(input());
  const MemoryReport report = memory_report();
  INFO(report.str());
  // No replay needs the argument, so the region does not hold it. The caller owns the result, and
  // the store has a copy of exp's saved tensor.
  CHECK(report.regions.size() == 1);
}

}  // namespace remat
