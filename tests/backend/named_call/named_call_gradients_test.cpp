// SPDX-License-Identifier: BSD-3-Clause

// Gradients through named calls: in-place writes, disabled gradients, tied weights, several
// backwards.
#include <array>
#include <string>
#include <vector>

#include "support/default_device.h"
#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::array kPolicies{Policy::kSave, Policy::kRecompute};

/// Reads its saved tensor twice in one backward.
struct ReadsTwice : torch::autograd::Function<ReadsTwice> {
  static constexpr std::array saved_names{"x", "e"};
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor e = x.exp();
    ctx->save_for_backward({x, e});
    return e * x;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto first = ctx->get_saved_variables();
    const auto second = ctx->get_saved_variables();
    return {grads[0] * first[1] * (1 + second[0])};
  }
};

/// Writes its argument in place and saves it.
struct DoublesInPlace : torch::autograd::Function<DoublesInPlace> {
  static constexpr std::array saved_names{"x"};
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x) {
    x.mul_(2);
    ctx->mark_dirty({x});
    ctx->save_for_backward({x});
    return x;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {2 * grads[0] + 0 * ctx->get_saved_variables()[0]};
  }
};

}  // namespace

TEST_CASE("A tensor that a SAVE call kept may not be written before backward",
          "[backend][native_op][in_place]") {
  SECTION("one that autograd saved in it") {
    at::Tensor leaked;
    const auto fn = [&](const at::Tensor& x) {
      return save("a", [&](const at::Tensor& t) { return leaked = t.sin(), leaked.cos(); })(x);
    };
    const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
    leaked.detach().mul_(2);
    CHECK_THAT(error_text([&] { y.sum().backward(); }),
               ContainsSubstring(
                   on_default_device("modified by an inplace operation: [float32 [4, 8] on cpu")) &&
                   ContainsSubstring("region 'r', call 'a' (SAVE), tensor 'saved."));
  }
  SECTION("its result, kept for a bare op") {
    at::Tensor leaked;
    const auto fn = [&](const at::Tensor& x) {
      leaked = save("a", [](const at::Tensor& t) { return t + 1; })(x);
      return leaked.cos() + x.exp();
    };
    const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
    leaked.detach().mul_(2);
    CHECK_THAT(
        error_text([&] { y.sum().backward(); }),
        ContainsSubstring("modified by an inplace operation") && ContainsSubstring("region 'r'"));
  }
  SECTION("its result, kept for a bare op that saves nothing of it") {
    at::Tensor leaked;
    const auto fn = [&](const at::Tensor& x) {
      leaked = save("a", [](const at::Tensor& t) { return t + 1; })(x);
      return (leaked + x).cos();
    };
    const at::Tensor y = checkpoint({.name = "r"})(fn)(step_input());
    leaked.detach().mul_(2);
    CHECK_THAT(error_text([&] { y.sum().backward(); }),
               ContainsSubstring("modified by an inplace operation") &&
                   ContainsSubstring("call 'a' (SAVE): expected its result as it left it"));
  }
}

TEST_CASE("A function that writes its argument and saves it gets the new value",
          "[backend][native_op][in_place]") {
  for (const Policy policy : kPolicies) {
    check_as_plain([&](const at::Tensor& x) {
      const at::Tensor h = x.sin();
      const at::Tensor y = op<DoublesInPlace>("a", policy)(h);
      return y.exp() * save("b", exp_of)(y);
    });
  }
}

TEST_CASE("Calls with gradients off stay out of the gradient", "[backend][native_op][no_grad]") {
  for (const Policy policy : kPolicies) {
    int runs = 0;
    const auto call = [&](const at::Tensor& t) { return ++runs, t.sin().exp(); };
    SECTION(std::string("a block in the call: ") + policy_name(policy)) {
      check_as_plain([&](const at::Tensor& x) {
        const auto partly = [](const at::Tensor& t) {
          const at::Tensor grown = t.exp();
          const torch::NoGradGuard no_grad;
          return grown + t.cos();
        };
        const auto in_part = [](const at::Tensor& t) {
          at::Tensor scale;
          {
            const torch::NoGradGuard no_grad;
            scale = t.cos();
          }
          return t.exp() * scale;
        };
        const at::Tensor a = native_op(partly, "a", policy)(x);
        return native_op(in_part, "b", policy)(x).sin() * a;
      });
    }
    SECTION(std::string("the whole call: ") + policy_name(policy)) {
      const auto fn = [&](const at::Tensor& x) {
        at::Tensor scale;
        {
          const torch::NoGradGuard no_grad;
          scale = native_op(call, "a", policy)(x.cos());
        }
        CHECK_FALSE(scale.requires_grad());
        return save("b", [](const at::Tensor& t, const at::Tensor& s) { return t.sin() * s; })(
                   x.exp(), scale)
            .exp();
      };
      step(checkpoint()(fn));
      CHECK(runs == (policy == Policy::kSave ? 1 : 2));
      check_as_plain(fn);
    }
  }
}

TEST_CASE("Where nothing is recorded named calls are plain", "[backend][native_op][no_grad]") {
  int runs = 0;
  const auto call = [&](const at::Tensor& t) { return ++runs, t.sin().exp(); };
  auto region_fn = checkpoint()(
      [&](const at::Tensor& x) { return recompute("b", call)(save("a", call)(x)).cos(); });
  SECTION("no_grad") {
    const torch::NoGradGuard no_grad;
    CHECK_FALSE(region_fn(step_input()).requires_grad());
    CHECK(memory_report().regions.empty());
  }
  SECTION("inference") {
    const c10::InferenceMode inference;
    CHECK_FALSE(region_fn(at::ones({2})).requires_grad());
  }
  SECTION("nothing requires grad") {
    const at::Tensor y = region_fn(at::ones({2}));
    CHECK_FALSE(y.requires_grad());
    CHECK(memory_report().bytes == 0);
  }
  CHECK(runs == 2);
}

TEST_CASE("A graph built under enable_grad in a region without gradients is a plain graph",
          "[backend][native_op][no_grad]") {
  int runs = 0;
  const auto call = [&](const at::Tensor& t) { return ++runs, t.sin().exp(); };
  const auto fn = [&](const at::Tensor& x) {
    const at::AutoGradMode enable(true);
    return save("a", call)(x).cos();
  };
  const at::Tensor x = step_input();
  at::Tensor y;
  {
    const torch::NoGradGuard no_grad;
    y = checkpoint()(fn)(x);
  }
  y.sum().backward();
  CHECK(runs == 1);
  CHECK(same_bits(x.grad(), torch::autograd::grad({fn(x).sum()}, {x})[0]));
}

TEST_CASE("A weight that is used in several ways gets the gradient of plain code",
          "[backend][native_op][tied]") {
  const at::Tensor w = (torch::arange(64, at::kFloat) / 64).view({8, 8}).requires_grad_();
  const auto times = [](const at::Tensor& t, const at::Tensor& weight) { return t.matmul(weight); };
  for (const Policy first : kPolicies) {
    for (const Policy second : kPolicies) {
      INFO(policy_name(first) << ", " << policy_name(second));
      check_as_plain(  // the weight and its transpose are captured
          [&](const at::Tensor& x) {
            const auto there = [&](const at::Tensor& t) { return t.matmul(w).tanh(); };
            const auto back = [&](const at::Tensor& t) { return t.matmul(w.t()); };
            return native_op(back, "b", second)(native_op(there, "a", first)(x.sin())).exp();
          },
          {w});
      check_as_plain(  // as arguments, one of them a view made bare; also read by bare ops
          [&](const at::Tensor& x) {
            const at::Tensor h = native_op(times, "a", first)(x.sin(), w);
            const at::Tensor y = native_op(times, "b", second)(h.tanh(), w.t());
            return (y.matmul(w) * w.sum()).tanh();
          },
          {w});
      check_as_plain(  // one tensor passed twice, and its square
          [&](const at::Tensor& x) {
            const auto both = [](const at::Tensor& t, const at::Tensor& a, const at::Tensor& b) {
              return t.matmul(a).matmul(b) + t.matmul(a * b);
            };
            return native_op(both, "a", first)(native_op(times, "b", second)(x, w), w, w).tanh();
          },
          {w});
    }
  }
}

TEST_CASE("A tied weight in two regions, and frozen", "[backend][native_op][tied]") {
  const at::Tensor w = (torch::arange(64, at::kFloat) / 64).view({8, 8}).requires_grad_();
  const auto project = [&](const at::Tensor& t) { return t.matmul(w).tanh(); };
  const auto block = [&](const at::Tensor& x) { return save("a", project)(x.sin()).exp(); };
  const TensorFn two = [&](const at::Tensor& x) {
    return checkpoint()(block)(checkpoint()(block)(x));
  };
  const TensorFn plain = [&](const at::Tensor& x) { return block(block(x)); };
  check_same(step(two, {w}), step(plain, {w}));
  w.set_requires_grad(false);
  check_same(step(two), step(plain));
}

TEST_CASE("A kept graph gives the same gradients again", "[backend][native_op][twice]") {
  const at::Tensor w = (torch::arange(64, at::kFloat) / 64).view({8, 8}).requires_grad_();
  const auto fn = [&](const at::Tensor& x) {
    const auto project = [&](const at::Tensor& t) { return t.narrow(0, 0, 4).matmul(w).exp(); };
    const at::Tensor h = save("a", project)(x.sin());  // a new output and a view
    return recompute("b", exp_of)(save("c", sin_of)(h.tanh())) * h;
  };
  const Tensors expected = step(fn, {w});
  w.mutable_grad() = at::Tensor();
  const at::Tensor x = step_input();
  const at::Tensor y = checkpoint()(fn)(x);
  const at::Tensor loss = (y * y.detach()).sum();
  SECTION("by backward") {
    for (const bool retain : {true, true, false}) {
      x.mutable_grad() = w.mutable_grad() = at::Tensor();
      loss.backward({}, retain);
      check_same({y.detach(), x.grad(), w.grad()}, expected);
    }
  }
  SECTION("by grad, of all and of one") {
    const Tensors first = torch::autograd::grad({loss}, {x, w}, {}, /*retain_graph=*/true);
    check_same(first, {expected[1], expected[2]});
    check_same(torch::autograd::grad({loss}, {w}, {}, /*retain_graph=*/true), {expected[2]});
    check_same(torch::autograd::grad({loss}, {x}), {expected[1]});
  }
}

TEST_CASE("Double backward passes named calls", "[backend][native_op][twice]") {
  const auto cube = [](const at::Tensor& t) { return t.pow(3) * t.exp(); };
  for (const Policy policy : kPolicies) {
    INFO(policy_name(policy));
    const auto second = [&](bool checkpointed) {
      const auto fn = [&](const at::Tensor& x) {
        return native_op(cube, "b", policy)(save("a", cube)(x.sin())).exp();
      };
      const at::Tensor x = step_input();
      const at::Tensor y = checkpointed ? checkpoint()(fn)(x) : fn(x);
      const at::Tensor grad =
          torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, true)[0];
      return torch::autograd::grad({grad.pow(2).sum()}, {x})[0];
    };
    CHECK(same_bits(second(true), second(false)));
  }
}

TEST_CASE("A custom function may ask twice for what it saved", "[backend][native_op][twice]") {
  for (const Policy policy : kPolicies) {
    check_as_plain(
        [&](const at::Tensor& x) { return op<ReadsTwice>("a", policy)(x.sin()).tanh().exp(); });
  }
}

TEST_CASE("A result on memory that was written after it was made has its place in the graph",
          "[backend][native_op][in_place]") {
  const auto view_then_write = [](const at::Tensor& t) {
    const at::Tensor view = t.as_strided({8, 4}, {1, 8});
    t.detach().add_(1);
    return view;
  };
  check_as_plain([&](const at::Tensor& x) { return save("a", view_then_write)(x).sin().exp(); });
}

TEST_CASE("A SAVE call that writes a view puts the view's base in the graph",
          "[backend][native_op][in_place]") {
  check_as_plain([&](const at::Tensor& x) {
    const at::Tensor base = x.detach() * 2;
    const at::Tensor other = base.t();
    save("a", [](at::Tensor view, const at::Tensor& t) { return view.add_(t); })(base.view({8, 4}),
                                                                                 x.view({8, 4}));
    return base.sin() * other.cos().t();
  });
}

TEST_CASE("A detached result of a SAVE call may be written", "[backend][native_op][in_place]") {
  check_as_plain([&](const at::Tensor& x) {
    const auto detached = [](const at::Tensor& t) { return t.detach(); };
    at::Tensor y = save("a", detached)(x.sin());
    y.add_(x);
    return y.sin().exp();
  });
}

TEST_CASE("A result that is a view of a constant may be written",
          "[backend][native_op][in_place]") {
  check_as_plain([&](const at::Tensor& x) {
    const at::Tensor base = x.detach() * 2;
    at::Tensor view = save("a", [](const at::Tensor& t) { return t.t(); })(base);
    view.add_(x.t());
    return base.sin().exp();
  });
}

}  // namespace remat
