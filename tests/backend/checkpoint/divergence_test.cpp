// SPDX-License-Identifier: BSD-3-Clause

// A replay that differs from the forward stops at the first op that differs. The error names both
// ops and the likely cause.
#include <remat/remat.h>

#include "support/catch.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/default_device.h"
#include "support/divergence.h"
#include "support/same_bits.h"

namespace {

using remat::checkpoint;
using Tensor = at::Tensor;
using Function = std::function<Tensor(const Tensor&)>;

using remat::check_says;
using remat::default_device;
using remat::on_default_device;

std::string divergence(const Function& fn, const std::function<void()>& change) {
  return remat::backward_error(fn, torch::ones({4, 4}).requires_grad_(), change);
}

TEST_CASE("A training flag that was switched", "[backend][divergence]") {
  torch::nn::Dropout dropout(0.5);
  check_says(divergence([dropout](const Tensor& x) mutable { return dropout(x.sin()).exp(); },
                        [&] { dropout->eval(); }),
             default_device().is_cpu() ? "aten::empty_like" : "aten::native_dropout", "aten::exp",
             "A training flag or a probability differs");
  torch::nn::BatchNorm1d norm(4);
  check_says(
      divergence([norm](const Tensor& x) mutable { return norm(x).exp(); }, [&] { norm->eval(); }),
      "aten::add_.Scalar", "aten::native_batch_norm", "A training flag");
}

TEST_CASE("Autocast that the function switches by outside state", "[backend][divergence]") {
  const auto low = std::make_shared<bool>(true);
  const Tensor w = torch::rand({4, 4}).requires_grad_();
  const Function fn = [low, w](const Tensor& x) {
    at::autocast::set_autocast_enabled(default_device().type(), *low);
    Tensor y = x.matmul(w);
    at::autocast::set_autocast_enabled(default_device().type(), false);
    at::autocast::clear_cache();
    return y.to(at::kFloat).exp();
  };
  check_says(divergence(fn, [&] { *low = false; }),
             default_device().is_cpu() ? "aten::mm(bfloat16" : "aten::mm(float16",
             "aten::mm(float32", "A dtype differs: autocast");
}

TEST_CASE("A cache that has grown", "[backend][divergence]") {
  auto cache = std::make_shared<Tensor>(torch::ones({2, 4}));
  const Function fn = [cache](const Tensor& x) { return at::cat({x, *cache}).exp(); };
  check_says(divergence(fn,
                        [&] {
                          *cache = at::cat({*cache, *cache});
                        }),
             "aten::cat(float32 [4, 4] on cpu requires grad from outside #0, float32 [2, 4] on cpu",
             "aten::cat(float32 [4, 4] on cpu requires grad from outside #0, float32 [4, 4] on cpu",
             "A shape differs: a cache that has grown");
}

TEST_CASE("A branch on data that has changed", "[backend][divergence]") {
  const auto threshold = std::make_shared<float>(0.0F);
  const Function fn = [threshold](const Tensor& x) {
    return (x.sum().item<float>() > *threshold ? x.sin() : x.cos()).exp();
  };
  check_says(divergence(fn, [&] { *threshold = 100; }), "aten::sin(", "aten::cos(",
             "branches on state or on data that has changed");
}

TEST_CASE("A random number not from a generator of LibTorch", "[backend][divergence]") {
  auto random = std::make_shared<int>(1);
  const Function fn = [random](const Tensor& x) { return (x * (*random)++).exp(); };
  check_says(divergence(fn, [] {}),
             "aten::mul.Scalar(float32 [4, 4] on cpu requires grad from outside #0, 1)",
             "aten::mul.Scalar(float32 [4, 4] on cpu requires grad from outside #0, 2)",
             "a random number not from a generator of LibTorch");
}

TEST_CASE("A schedule that has moved on", "[backend][divergence]") {
  const auto p = std::make_shared<double>(0.25);
  const Function fn = [p](const Tensor& x) { return at::leaky_relu(x, *p).exp(); };
  check_says(divergence(fn, [&] { *p = 0.5; }), "aten::leaky_relu(", "aten::leaky_relu(",
             "A number differs: a counter, a schedule");
}

TEST_CASE("A parameter that was changed", "[backend][divergence]") {
  Tensor w = torch::rand({4}).requires_grad_();
  const std::string text = divergence([w](const Tensor& x) { return (x + w).exp(); },
                                      [&] {
                                        const at::NoGradGuard no_grad;
                                        w.mul_(2);
                                      });
  CHECK_THAT(text, ContainsSubstring("[replay] region 'r', slot 0, op aten::add.Tensor") &&
                       ContainsSubstring(on_default_device(
                           "modified by an inplace operation: [float32 [4] on cpu]")));
}

TEST_CASE("A parameter that the function uses as a constant", "[backend][divergence]") {
  const Tensor w = torch::rand({4}).requires_grad_();
  const auto frozen = std::make_shared<bool>(false);
  check_says(divergence(
                 [w, frozen](const Tensor& x) {
                   w.requires_grad_(!*frozen);
                   return (x + w).exp();
                 },
                 [&] { *frozen = true; }),
             "aten::add.Tensor(", "aten::add.Tensor(", "a parameter has been frozen or unfrozen");
}

TEST_CASE("A call that is missing, and one that was added", "[backend][divergence]") {
  const auto extra = std::make_shared<bool>(false);
  const Function fn = [extra](const Tensor& x) {
    const Tensor y = x.sin();
    return (*extra ? y.neg() : y).exp();
  };
  *extra = true;
  check_says(divergence(fn, [&] { *extra = false; }), "aten::neg(", "aten::exp(", "branches");
  check_says(divergence(fn, [&] { *extra = true; }), "aten::exp(", "aten::neg(", "branches");
}

TEST_CASE("Another part of a tensor, and another order", "[backend][divergence]") {
  const auto row = std::make_shared<int64_t>(1);
  const Function part = [row](const Tensor& x) { return x.select(0, *row).exp(); };
  check_says(divergence(part, [&] { *row = 2; }), "aten::exp(float32 [4] at element 4 on cpu",
             "aten::exp(float32 [4] at element 8 on cpu", "another part of a tensor");
  const auto turned = std::make_shared<bool>(false);
  const Function order = [turned](const Tensor& x) { return (*turned ? x.t() : x).exp(); };
  check_says(divergence(order, [&] { *turned = true; }), "aten::exp(float32 [4, 4] on cpu",
             "aten::exp(float32 [4, 4] strided on cpu", "in another order");
}

TEST_CASE("Another shape, dtype and device", "[backend][divergence]") {
  const auto other = std::make_shared<Tensor>(torch::ones({4}));
  const Function fn = [other](const Tensor& x) { return (x + *other).exp(); };
  check_says(divergence(fn,
                        [&] {
                          *other = torch::ones({4, 1});
                        }),
             "aten::add.Tensor(", "aten::add.Tensor(", "A shape differs");
  check_says(divergence(fn,
                        [&] {
                          *other = torch::ones({4, 1}, at::kDouble);
                        }),
             "aten::add.Tensor(", "aten::add.Tensor(", "A dtype differs");
}

TEST_CASE("Another dim", "[backend][divergence]") {
  const auto dim = std::make_shared<int64_t>(0);
  const Function fn = [dim](const Tensor& x) { return x.softmax(*dim).exp(); };
  check_says(divergence(fn, [&] { *dim = 1; }), "aten::_softmax(", "aten::_softmax(",
             "A number differs");
}

TEST_CASE("A function that asks is_recomputing() may leave ops out", "[backend][divergence]") {
  const auto count = std::make_shared<Tensor>(torch::zeros({}));
  const auto fn = [count](const Tensor& x) {
    const Tensor y = x.sin();
    if (!remat::is_recomputing()) count->add_(y.detach().sum());
    return y.exp();
  };
  const Tensor x = torch::ones({4, 4}).requires_grad_();
  checkpoint()(fn)(x).sum().backward();
  CHECK(same_bits(*count, x.detach().sin().sum()));
  CHECK(same_bits(x.grad(), torch::autograd::grad({x.sin().exp().sum()}, {x})[0]));
}

TEST_CASE("A write of state that only the replay does is refused", "[backend][divergence]") {
  const Tensor count = torch::zeros({});
  const bool is_read = GENERATE(false, true);  // the forward reads the tensor
  CAPTURE(is_read);
  const Function fn = [count, is_read](const Tensor& x) {
    const Tensor y = is_read ? x.sin() + count : x.sin();
    if (remat::is_recomputing()) count.add_(1);
    return y.exp();
  };
  CHECK_THAT(divergence(fn, [] {}),
             ContainsSubstring(on_default_device(
                 "op aten::add_.Scalar: expected to write what the forward wrote, got "
                 "another tensor (float32 [] on cpu) from outside the region.")));
  CHECK(count.item<float>() == 0);
}

TEST_CASE("Without determinism checks and without interception nothing is compared op by op",
          "[backend][divergence]") {
  const auto factor = std::make_shared<double>(1);
  const auto fn = [factor](const Tensor& x) { return (x * *factor).exp(); };
  for (const remat::CheckpointOptions& options :
       {remat::CheckpointOptions{.determinism = remat::Determinism::kNone},
        remat::CheckpointOptions{.intercept = false}}) {
    const Tensor x = torch::ones({4, 4}).requires_grad_();
    const Tensor y = checkpoint(options)(fn)(x);
    *factor += 1;
    CHECK_NOTHROW(y.sum().backward());
  }
}

TEST_CASE("With op_site a divergence lists the ops of both runs with where they come from",
          "[backend][divergence]") {
  const auto line = std::make_shared<int>(0);
  const auto more = std::make_shared<bool>(true);
  const Function fn = [line, more](const Tensor& x) {
    *line = 1;
    Tensor y = x.sin();
    *line = 2;
    if (*more)
      y = remat::native_op([](const Tensor& t) { return t.exp(); }, "exp",
                           remat::Policy::kRecompute)(y);
    *line = 3;
    return y.cos();
  };
  remat::CheckpointOptions options{.name = "r"};
  // An op inside op_site is not an op of the region.
  options.op_site = [line] { return c10::str("line ", at::ones({1}).add(*line - 1).item<int>()); };
  const std::string text = remat::backward_error(
      fn, torch::ones({2}).requires_grad_(), [&] { *more = false; }, options);
  CHECK_THAT(text,
             ContainsSubstring(on_default_device(
                 "Ops of the forward:\n"
                 "  0 aten::sin(float32 [2] on cpu requires grad from outside #0)  line 1\n"
                 "  1 call 'exp' (RECOMPUTE)(float32 [2] on cpu requires grad of op 0)  line 2\n"
                 "  2 aten::exp(float32 [2] on cpu requires grad of op 0)  line 2\n"
                 "  3 aten::cos(float32 [2] on cpu requires grad of op 2)  line 3\n"
                 "Ops of the replay, the last one is where it stopped:\n"
                 "  0 aten::sin(float32 [2] on cpu requires grad from outside #0)  line 1\n"
                 "  1 aten::cos(float32 [2] on cpu requires grad of op 0)  line 3\n")));
}

TEST_CASE("A tensor made of a vector of the host that changes", "[backend][divergence]") {
  // Numbers from the host are compared where an op reads them: on CUDA that is the op that copies
  // them.
  const auto reader = [](const char* on_cpu) {
    return default_device().is_cpu() ? on_cpu : "aten::_to_copy";
  };
  auto numbers = std::make_shared<std::vector<float>>(16, 1.F);
  const auto change = [&] { (*numbers)[3] = 5; };
  for (const size_t count : {size_t{16}, size_t{2048}}) {
    numbers->assign(count, 1.F);
    check_says(remat::backward_error(
                   [numbers](const Tensor& x) {
                     return (x * torch::tensor(*numbers).to(x.device())).sin();
                   },
                   torch::ones({static_cast<int64_t>(count)}).requires_grad_(), change),
               reader("aten::mul"), reader("aten::mul"), "A number differs");
  }
  std::vector<int64_t> rows{0};
  check_says(divergence(
                 [&](const Tensor& x) {
                   return x.index_select(0, torch::tensor(rows).to(x.device())).sin();
                 },
                 [&] { rows[0] = 2; }),
             reader("aten::index_select"), reader("aten::index_select"), "A number differs");
}

TEST_CASE("Memory that ops fill, or that nobody reads, does not count as a number of the host",
          "[backend][divergence]") {
  const Function fn = [](const Tensor& x) {
    const Tensor filled = torch::empty_like(x);
    filled[0].copy_(x[0].detach());  // only a part
    Tensor sum = torch::empty({});
    at::sum_out(sum, x.detach(), at::IntArrayRef{0, 1});
    std::vector<Tensor> list{torch::empty({2}), torch::empty({3})};
    at::_foreach_zero_(list);
    return (x * sum * filled[0] * (list[0].sum() + 1) *
            torch::tensor({1.F, 2.F, 3.F, 4.F}, x.device()))
        .sin();
  };
  const Tensor y = checkpoint({.name = "r"})(fn)(torch::ones({4, 4}).requires_grad_());
  CHECK_NOTHROW(y.sum().backward());
}

}  // namespace
