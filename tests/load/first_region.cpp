// SPDX-License-Identifier: BSD-3-Clause

// A library on remat, for programs that load it while they run. It includes every public header,
// whose initialisers run when it is loaded.
#include <torch/torch.h>

#include <remat/remat.h>

extern "C" __attribute__((visibility("default"))) void run_first_region();

void run_first_region() {
  const at::Tensor x = torch::ones({4}).requires_grad_();
  remat::checkpoint({.name = "first"})([](const at::Tensor& y) { return y.sin().exp(); })(x)
      .sum()
      .backward();
}
