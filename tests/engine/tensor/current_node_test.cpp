// SPDX-License-Identifier: BSD-3-Clause

// Note [When a view gets its node]: the last bits of a gradient depend on when a stale view gets
// its node.
#include <remat/engine/current_node.h>
#include <torch/torch.h>

#include <functional>
#include <tuple>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/same_bits.h"

namespace remat {
namespace {

/// Returns a tensor and a view of it that was made before the tensor was written: the view is
/// stale.
std::tuple<at::Tensor, at::Tensor> written_and_stale(const at::Tensor& x) {
  at::Tensor base = x.sin();
  const at::Tensor view = base.view({2});
  base.mul_(2);
  return {base, view};
}

/// The gradients of `base` are 1e8, -1e8 and, through the view, 1. Later nodes run first: if the
/// view gets its node here, the sum is (1 - 1e8) + 1e8 = 0 in float32; if it had one earlier, (-1e8
/// + 1e8) + 1 = 1.
at::Tensor use(const at::Tensor& base, const at::Tensor& view) {
  const at::Tensor large = base * 1e8;
  const at::Tensor opposite = base * -1e8;
  return large + opposite + view * 1;
}

at::Tensor grad_of(const std::function<at::Tensor(const at::Tensor&)>& fn) {
  const at::Tensor x = torch::zeros({2}).requires_grad_();
  return torch::autograd::grad({fn(x).sum()}, {x})[0];
}

at::Tensor plain_grad() {
  return grad_of([](const at::Tensor& x) {
    const auto [base, view] = written_and_stale(x);
    return use(base, view);
  });
}

}  // namespace

TEST_CASE("A stale view that is asked for its node early has another gradient",
          "[tape][current_node]") {
  CHECK(same_bits(plain_grad(), torch::zeros({2})));
  const at::Tensor early = grad_of([](const at::Tensor& x) {
    const auto [base, view] = written_and_stale(x);
    CHECK(is_stale_view(view));
    CHECK(view.grad_fn() != nullptr);
    CHECK_FALSE(is_stale_view(view));
    return use(base, view);
  });
  CHECK(same_bits(early, torch::full({2}, 2.0)));
}

TEST_CASE("The node of a stale view is found without making it", "[tape][current_node]") {
  const at::Tensor x = torch::zeros({2}).requires_grad_();
  const auto [base, view] = written_and_stale(x);
  CHECK(current_node(view) == base.grad_fn().get());
  CHECK(is_stale_view(view));
  CHECK(current_node(x) == nullptr);
}

TEST_CASE("A region does not take the ops that make a stale view's node for its own",
          "[tape][current_node]") {
  // Strides do not describe this view, so autograd makes its node by replaying its view ops.
  const auto fn = [](bool with_region) {
    return grad_of([&](const at::Tensor& x) {
      const at::Tensor view = at::imag(at::complex(x.sin(), x.cos()).conj());
      view.detach().select(0, 1).zero_();
      const auto softmax = [](const at::Tensor& t) { return t.softmax(0).exp(); };
      if (!with_region) return softmax(view);
      return checkpoint()([&](const at::Tensor& t) { return checkpoint()(softmax)(t); })(view);
    });
  };
  CHECK(same_bits(fn(true), fn(false)));
  const auto inside = [](bool with_region) {
    return grad_of([&](const at::Tensor& x) {
      const auto outer = [&](const at::Tensor& t) {
        const at::Tensor view = at::imag(at::complex(t.sin(), t.cos()).conj());
        view.detach().select(0, 1).zero_();
        const auto softmax = [](const at::Tensor& v) { return v.softmax(0).exp(); };
        return with_region ? checkpoint()(softmax)(view) : softmax(view);
      };
      return with_region ? checkpoint()(outer)(x) : outer(x);
    });
  };
  CHECK(same_bits(inside(true), inside(false)));
}

TEST_CASE("A region asks no stale view for its node earlier than plain code",
          "[tape][current_node]") {
  SECTION("that is its argument") {
    const at::Tensor got = grad_of([](const at::Tensor& x) {
      const auto [base, view] = written_and_stale(x);
      return checkpoint()(use)(base, view);
    });
    CHECK(same_bits(got, plain_grad()));
  }
  SECTION("that it returns") {
    const at::Tensor got = grad_of([](const at::Tensor& x) {
      const auto [base, view] = checkpoint()(written_and_stale)(x);
      return use(base, view);
    });
    CHECK(same_bits(got, plain_grad()));
  }
  SECTION("that a SAVE call in it returns") {
    const at::Tensor got = grad_of([](const at::Tensor& x) {
      return checkpoint()([](const at::Tensor& t) {
        const auto [base, view] = native_op(written_and_stale, "a", Policy::kSave)(t);
        return use(base, view);
      })(x);
    });
    CHECK(same_bits(got, plain_grad()));
  }
}

}  // namespace remat
