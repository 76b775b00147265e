// SPDX-License-Identifier: BSD-3-Clause

// A race of two threads inside a region's function: ThreadSanitizer must see it although LibTorch,
// through which the function is called, is not instrumented.
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include <remat/remat.h>

namespace {

int counter = 0;
std::atomic<int> present{0};

at::Tensor racing(const at::Tensor& x) {
  ++counter;
  return x.sin();
}

void step() {
  // Both threads reach this point before either writes, and nothing orders their writes.
  ++present;
  while (present.load(std::memory_order_relaxed) < 2) std::this_thread::yield();
  const at::Tensor x = torch::ones({4}).requires_grad_();
  for (int i = 0; i < 100; ++i) remat::checkpoint()(racing)(x).sum().backward();
}

}  // namespace

int main() {
  std::thread other(step);
  step();
  other.join();
  return counter == 0;
}
