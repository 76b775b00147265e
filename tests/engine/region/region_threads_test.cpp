// SPDX-License-Identifier: BSD-3-Clause

// Backward of regions in several threads at once, and the one place where they wait.
#include <remat/engine/blocking_wait.h>
#include <remat/engine/scope.h>
#include <remat/remat.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "support/same_bits.h"

namespace {

using Tensor = at::Tensor;

constexpr int kThreads = 4;
constexpr int kBackwards = 500;

void in_threads(const std::function<void(int)>& fn) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(fn, i);
  for (std::thread& thread : threads) thread.join();
}

Tensor nested(const Tensor& x) {
  const auto inner = [](const Tensor& t) { return t.sin().exp(); };
  return remat::checkpoint()(
      [inner](const Tensor& t) { return remat::checkpoint()(inner)(t).tanh().cos(); })(x);
}

Tensor plain(const Tensor& x) {
  return x.sin().exp().tanh().cos();
}

Tensor grad(const Tensor& loss, const Tensor& x) {
  return torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
}

TEST_CASE("4 threads with graphs of their own get plain's gradients, 500 times each",
          "[tape][region][threads]") {
  std::atomic<int> wrong{0};
  in_threads([&](int i) {
    const Tensor x = torch::full({16}, 0.1 * (i + 1)).requires_grad_();
    const Tensor expected = grad(plain(x).sum(), x);
    for (int n = 0; n < kBackwards; ++n) {
      const Tensor loss = nested(x).sum();
      if (!same_bits(torch::autograd::grad({loss}, {x})[0], expected) || remat::is_recomputing())
        ++wrong;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("4 threads on one kept graph get plain's gradients, 500 times each, and leave nothing",
          "[tape][region][threads]") {
  const Tensor x = torch::linspace(0, 1, 16).requires_grad_();
  const auto token = std::make_shared<int>();
  const auto fn = [token](const Tensor& t) { return nested(t).sin(); };
  Tensor loss = remat::checkpoint()(fn)(x).sum();
  const Tensor expected = grad(plain(x).sin().sum(), x);
  std::atomic<int> wrong{0};
  in_threads([&](int /*i*/) {
    for (int n = 0; n < kBackwards; ++n) {
      if (!same_bits(grad(loss, x), expected)) ++wrong;
    }
  });
  CHECK(wrong == 0);
  CHECK(token.use_count() == 3);  // held here, in fn and in the region
  loss.reset();
  CHECK(token.use_count() == 2);
}

TEST_CASE("4 threads that draw in their replays on one graph get one gradient",
          "[tape][region][threads]") {
  torch::manual_seed(1);
  const Tensor x = torch::rand({64}).requires_grad_();
  const auto fn = [](const Tensor& t) { return torch::dropout(t.sin(), 0.5, true).exp(); };
  const Tensor loss = remat::checkpoint()(fn)(x).sum();
  const Tensor expected = grad(loss, x);
  std::atomic<int> wrong{0};
  in_threads([&](int /*i*/) {
    for (int n = 0; n < kBackwards; ++n) {
      if (!same_bits(grad(loss, x), expected)) ++wrong;
    }
  });
  CHECK(wrong == 0);
}

// Number of times that a thread waited through the installed runner.
std::atomic<int> waits{0};

void counting_wait(c10::function_ref<void()> wait) {
  ++waits;
  wait();
}

class CountWaits {
 public:
  CountWaits() {
    waits = 0;
    remat::set_blocking_wait(&counting_wait);
  }
  CountWaits(const CountWaits&) = delete;
  CountWaits& operator=(const CountWaits&) = delete;
  ~CountWaits() { remat::set_blocking_wait(nullptr); }
};

// [cpu]: on CUDA all replays run on the device's thread, so none waits.
TEST_CASE("A thread that must wait for another's replay waits through the installed runner",
          "[tape][region][threads][cpu]") {
  // The replay draws, so a second thread's replay waits for its turn with the generator. The first
  // replay goes on only when the second waits. If the second did not wait through the runner, this
  // would run into the timeout.
  torch::manual_seed(1);
  const CountWaits count;
  const Tensor x = torch::rand({64}).requires_grad_();
  std::atomic<bool> timed_out{false};
  const auto fn = [&timed_out](const Tensor& t) {
    const Tensor y = torch::dropout(t, 0.5, true);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (remat::is_recomputing() && waits == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        timed_out = true;
        break;
      }
      std::this_thread::yield();
    }
    return y.sin();
  };
  const Tensor loss = remat::checkpoint()(fn)(x).sum();
  in_threads([&](int /*i*/) { grad(loss, x); });
  CHECK_FALSE(timed_out);
  CHECK(waits >= 1);
}

TEST_CASE("Without a runner of its own a wait just waits", "[tape][region][threads]") {
  remat::set_blocking_wait(nullptr);
  bool waited = false;
  remat::blocking_wait([&waited] { waited = true; });
  CHECK(waited);
}

}  // namespace
