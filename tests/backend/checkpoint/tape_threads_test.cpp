// SPDX-License-Identifier: BSD-3-Clause

// Regions with tapes on many threads: one graph for each, and one graph for all.
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <remat/engine/region.h>
#include <remat/remat.h>

#include "support/catch.h"
#include "support/same_bits.h"

namespace remat {
namespace {

constexpr int kThreads = 8;
constexpr int kBackwards = 10000;

using BlockFn = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor thread_weight() {
  return torch::linspace(-1, 1, 16).view({4, 4});
}

at::Tensor leaf() {
  return torch::linspace(0.1, 1, 16).view({4, 4}).clone().requires_grad_();
}

at::Tensor block(const at::Tensor& x) {
  at::Tensor y = x.sin().mm(thread_weight());
  y.mul_(0.5);
  return torch::gelu(torch::dropout(y, 0, true)) + x.exp();
}

/// All threads use the same name for the region, so that they share what is known of its tapes.
at::Tensor region(const BlockFn& fn, const at::Tensor& x, ReplayEngine inner) {
  const auto half = checkpoint({.name = "half", .replay = inner})(fn);
  return checkpoint({.name = "threads", .replay = ReplayEngine::kTape})(
      [&](const at::Tensor& y) { return half(y.tanh()).cos(); })(x);
}

/// Returns how many threads get a result other than `expected`.
int count_wrong(const at::Tensor& expected, const std::function<at::Tensor()>& gradient) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kBackwards / kThreads; ++j) {
        if (!same_bits(gradient(), expected)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

at::Tensor plain_gradient() {
  const at::Tensor x = leaf();
  return torch::autograd::grad({block(x.tanh()).cos().sum()}, {x})[0];
}

}  // namespace

TEST_CASE("8 threads with taped graphs of their own get plain's gradients, 10,000 in all",
          "[backend][tape][threads][many]") {
  const auto inner = GENERATE(ReplayEngine::kTape, ReplayEngine::kAuto, ReplayEngine::kFunction);
  CHECK(count_wrong(plain_gradient(), [&] {
          const at::Tensor x = leaf();
          return torch::autograd::grad({region(block, x, inner).sum()}, {x})[0];
        }) == 0);
  CHECK(live_regions().empty());
}

TEST_CASE("8 threads on one kept taped graph get plain's gradients, 10,000 in all",
          "[backend][tape][threads][many]") {
  {
    const at::Tensor x = leaf();
    const at::Tensor loss = region(block, x, ReplayEngine::kTape).sum();
    CHECK(count_wrong(plain_gradient(), [&] {
            return torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
          }) == 0);
  }
  CHECK(live_regions().empty());
}

TEST_CASE("8 threads cut their tapes", "[backend][tape][threads]") {
  CheckpointOptions options{.name = "cut threads", .replay = ReplayEngine::kTape};
  options.cuts.positions = {2, 4};
  CHECK(count_wrong(plain_gradient(), [&] {
          const at::Tensor x = leaf();
          const at::Tensor y =
              checkpoint(options)([](const at::Tensor& z) { return block(z.tanh()).cos(); })(x);
          return torch::autograd::grad({y.sum()}, {x})[0];
        }) == 0);
  CHECK(live_regions().empty());
}

}  // namespace remat
