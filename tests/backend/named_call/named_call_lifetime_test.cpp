// SPDX-License-Identifier: BSD-3-Clause

// Lifetimes of the tensors that named calls hold.
#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "support/default_device.h"
#include "support/named_step.h"

namespace remat {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Saves its own output.
struct SavesOutput : torch::autograd::Function<SavesOutput> {
  static constexpr std::array saved_names{"y"};
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor y = x.exp();
    ctx->save_for_backward({y});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

}  // namespace

TEST_CASE("Each tensor of a SAVE call has its own fate", "[backend][native_op][lifetime]") {
  const auto call = [](const at::Tensor& t) { return t.sin().cos(); };
  const at::Tensor y = checkpoint({.name = "r"})([&](const at::Tensor& x) {
    const at::Tensor a = save("a", call)(x.cos());
    return save("b", [](const at::Tensor& t) { return t + 1; })(a).exp();
  })(step_input());
  const MemoryReport report = memory_report();
  INFO(report.str());
  // x.cos() runs again, sin's result stays, a is released; b stays, because bare exp reads it.
  REQUIRE(report.regions.size() == 1);
  std::vector<std::string> names;
  for (const MemoryRow& row : report.regions[0].rows) {
    if (row.bytes > 0) names.push_back(row.name);
  }
  CHECK(names == std::vector<std::string>{"a: saved.1", "b: result"});
  y.sum().backward();
}

TEST_CASE("A call that saves its own result makes no cycle", "[backend][native_op][lifetime]") {
  const SavedTensorsHooks same{
      .pack = [](const at::Tensor& t) -> std::any { return t; },
      .unpack = [](const std::any& t) { return std::any_cast<at::Tensor>(t); }};
  const std::vector<CheckpointOptions> all{
      {}, {.saved_tensors_hooks = same}, {.offload_store = host_memory_store()}};
  for (const CheckpointOptions& options : all) {
    const at::Tensor x = step_input();
    const MemoryMeter meter;
    {
      const at::Tensor y = checkpoint(options)([&](const at::Tensor& t) {
        const Policy policy = options.offload_store ? Policy::kOffload : Policy::kSave;
        return op<SavesOutput>("b", policy)(native_op(exp_of, "a", policy)(t.sin()));
      })(x);
      CHECK(meter.current_bytes(default_device()) > 0);
    }
    CHECK(meter.current_bytes(default_device()) == 0);
  }
}

TEST_CASE("Results that nobody needs are freed with the function",
          "[backend][native_op][lifetime]") {
  const at::Tensor x = step_input();
  const MemoryMeter meter;
  const auto two = [](const at::Tensor& t) { return std::tuple(t + 1, t + 2); };
  const at::Tensor y = checkpoint()([&](const at::Tensor& t) {
    const auto [main, aux] = save("a", two)(t);
    return save("b", [](const at::Tensor& h) { return h + 3; })(main);
  })(x);
  CHECK(meter.current_bytes(default_device()) == block_bytes(static_cast<int64_t>(y.nbytes())));
  CHECK(memory_report().regions.empty());  // no replay needs the argument
}

TEST_CASE("The function goes with the last tensor to recompute, though a SAVE call holds others",
          "[backend][native_op][lifetime]") {
  const auto token = std::make_shared<int>();
  at::Tensor inside;
  const at::Tensor y = checkpoint({.name = "r"})([token, &inside](const at::Tensor& x) {
    inside = save("a", [](const at::Tensor& t) { return t.exp(); })(x);
    return inside.sin().exp();
  })(step_input());
  CHECK(token.use_count() == 2);
  torch::autograd::grad({y.sum()}, {inside});  // frees the nodes after the call
  CHECK(memory_report().regions.size() == 1);
  CHECK(token.use_count() == 1);
}

TEST_CASE("After one backward nothing is held", "[backend][native_op][lifetime]") {
  const at::Tensor x = step_input();
  const auto fn = [](const at::Tensor& t) {
    return recompute("b", exp_of)(save("a", exp_of)(t.sin())).cos();
  };
  const MemoryMeter meter;
  const at::Tensor loss = checkpoint()(fn)(x).sum();
  loss.backward();
  CHECK(memory_report().regions.empty());
  x.mutable_grad() = at::Tensor();
  const int64_t left = block_bytes(static_cast<int64_t>(loss.nbytes()));
  CHECK(meter.current_bytes(default_device()) == left);
}

TEST_CASE("Reading a result outside starts no replay", "[backend][native_op][lifetime]") {
  int runs = 0;
  const at::Tensor y = checkpoint()([&](const at::Tensor& x) {
    ++runs;
    return save("a", sin_of)(x.exp()).tanh();
  })(step_input());
  CHECK(y.sum().item<float>() != 0);
  CHECK(runs == 1);
}

}  // namespace remat
