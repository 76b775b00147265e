// SPDX-License-Identifier: BSD-3-Clause

// The smallest use of remat: a checkpointed function has the gradient of the plain one.
#include <ATen/ATen.h>
#include <remat/remat.h>

#include <iostream>

int main() {
  const auto f = [](const at::Tensor& x) { return (x * x).sin().sum(); };
  const at::Tensor x = at::arange(4, at::kFloat).requires_grad_();

  f(x).backward();
  const at::Tensor plain = x.grad().clone();
  x.mutable_grad().reset();
  remat::checkpoint()(f)(x).backward();

  const bool equal = at::equal(plain, x.grad());
  std::cout << "gradients bitwise equal: " << (equal ? "yes" : "no") << '\n';
  return equal ? 0 : 1;
}
