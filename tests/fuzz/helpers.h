// SPDX-License-Identifier: BSD-3-Clause

// What random programs call beside LibTorch and remat, each with its own text: printed programs
// have it in them.
#pragma once

#include <ATen/autocast_mode.h>
#include <remat/remat.h>
#include <torch/torch.h>

#include <any>
#include <exception>
#include <functional>
#include <thread>

#define REMAT_FUZZ_HELPER(name, ...) \
  __VA_ARGS__                        \
  inline constexpr const char* name##_text = #__VA_ARGS__;

namespace remat::fuzz {

// clang-format off
REMAT_FUZZ_HELPER(Square,
struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<at::Tensor>& grads) {
    return {grads[0] * 2 * context->get_saved_variables()[0]};
  }
};)

REMAT_FUZZ_HELPER(SavesResult,
struct SavesResult : torch::autograd::Function<SavesResult> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor result = x.sigmoid();
    context->save_for_backward({result});
    return result;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<at::Tensor>& grads) {
    const at::Tensor result = context->get_saved_variables()[0];
    return {grads[0] * result * (1 - result)};
  }
};)

REMAT_FUZZ_HELPER(TwoResults,
struct TwoResults : torch::autograd::Function<TwoResults> {
  static std::vector<at::Tensor> forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& y, double factor) {
    const at::Tensor middle = x.tanh();
    context->saved_data["factor"] = factor;
    context->save_for_backward({middle});
    return {middle * factor, y + middle};
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<at::Tensor>& grads) {
    const at::Tensor middle = context->get_saved_variables()[0];
    const double factor = context->saved_data["factor"].toDouble();
    return {(grads[0] * factor + grads[1]) * (1 - middle * middle), grads[1], at::Tensor()};
  }
};)

REMAT_FUZZ_HELPER(InPlace,
struct InPlace : torch::autograd::Function<InPlace> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x) {
    context->mark_dirty({x});
    return x.mul_(0.5);
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*, const std::vector<at::Tensor>& grads) {
    return {grads[0] * 0.5};
  }
};)

REMAT_FUZZ_HELPER(add_out,
inline at::Tensor add_out(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_grad;
  at::Tensor out = at::zeros({4, 4});
  return at::add_out(out, a, b);
})

REMAT_FUZZ_HELPER(no_grad_mean,
inline at::Tensor no_grad_mean(const at::Tensor& a) {
  const at::NoGradGuard no_grad;
  return a.mean();
})

REMAT_FUZZ_HELPER(inner_grad,
inline at::Tensor inner_grad(const at::Tensor& a) {
  const at::Tensor x = a.requires_grad() ? a : a.detach().requires_grad_(true);
  const at::Tensor y = (x.sin() * x).sum();
  return torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
})

REMAT_FUZZ_HELPER(inner_backward,
inline at::Tensor inner_backward(const at::Tensor& a, const at::Tensor& weight) {
  const at::Tensor x = a.detach().requires_grad_(true);
  (x * weight).sin().sum().backward();
  return a + x.grad();
})

REMAT_FUZZ_HELPER(set_hook,
inline void set_hook(const at::Tensor& a, double factor) {
  if (a.requires_grad()) a.register_hook([factor](const at::Tensor& grad) { return grad * factor; });
})

REMAT_FUZZ_HELPER(Autocast,
class Autocast {
 public:
  Autocast() : was_on_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was_on_);
  }
 private:
  bool was_on_;
};)

REMAT_FUZZ_HELPER(copying_hooks,
inline remat::SavedTensorsHooks copying_hooks() {
  return {.pack = [](const at::Tensor& tensor) -> std::any { return tensor.clone(); },
          .unpack = [](const std::any& copy) { return std::any_cast<at::Tensor>(copy).clone(); }};
})

REMAT_FUZZ_HELPER(on_thread,
inline void on_thread(const std::function<void()>& fn) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      fn();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
})

REMAT_FUZZ_HELPER(on_two_threads,
inline void on_two_threads(const std::function<void()>& first, const std::function<void()>& second) {
  std::exception_ptr error;
  std::thread other([&] {
    try {
      second();
    } catch (...) {
      error = std::current_exception();
    }
  });
  try {
    first();
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (error) std::rethrow_exception(error);
})
// clang-format on

}  // namespace remat::fuzz
