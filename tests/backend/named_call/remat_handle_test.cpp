// SPDX-License-Identifier: BSD-3-Clause

// Custom functions as named calls: handles, op() and names of saved tensors.
#include <torch/torch.h>

#include <array>
#include <functional>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/same_bits.h"
#include "support/unwound.h"

namespace remat {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int body_runs = 0;
Policy handle_policy = Policy::kSave;

/// exp(x) * y with a RematHandle.
struct ExpTimes : torch::autograd::Function<ExpTimes> {
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x, at::Tensor y) {
    auto handle = get_handle(ctx, "exp_times", handle_policy);
    if (auto saved = handle.maybe_load_saved()) return (*saved)[0];
    std::tie(x, y) = handle.save_or_load_inputs(x, y);
    ++body_runs;
    const at::Tensor e = x.exp();
    handle.save_for_backward({{"e", e}, {"none", at::Tensor()}, {"y", y}});
    return handle.record_outputs(e * y);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    CHECK_FALSE(saved[1].defined());
    return {grads[0] * saved[0] * saved[2], grads[0] * saved[0]};
  }
};

/// ExpTimes, called by op().
struct ExpTimesOp : torch::autograd::Function<ExpTimesOp> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y) {
    auto handle = get_handle(ctx);
    if (auto saved = handle.maybe_load_saved()) return (*saved)[0];
    ++body_runs;
    const at::Tensor e = x.exp();
    handle.save_for_backward({{"e", e}, {"y", y}});
    return handle.record_outputs(e * y);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[0] * saved[1], grads[0] * saved[0]};
  }
};

/// ExpTimes without a handle; it only names its saved tensors.
struct ExpTimesAuto : torch::autograd::Function<ExpTimesAuto> {
  static constexpr std::array saved_names{"e", "y"};
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y) {
    ++body_runs;
    const at::Tensor e = x.exp();
    ctx->save_for_backward({e, y});
    return e * y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[0] * saved[1], grads[0] * saved[0]};
  }
};

struct SavesThree : torch::autograd::Function<SavesThree> {
  static constexpr std::array saved_names{"x", "y"};
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x.sin(), x.cos(), x.exp()});
    return x.sin();
  }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return grads;
  }
};

struct NoHandle : torch::autograd::Function<NoHandle> {
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& x) { return x.sin(); }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return grads;
  }
};

struct NeverLoads : torch::autograd::Function<NeverLoads> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    auto handle = get_handle(ctx, "never_loads", Policy::kSave);
    return handle.record_outputs(handle.save_or_load_inputs(x).sin());
  }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return grads;
  }
};

/// Replaces x by x * x. If x is a view, autograd makes nodes before this function's tensors are
/// saved.
struct SquareInPlaceOp : torch::autograd::Function<SquareInPlaceOp> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    auto handle = get_handle(ctx);
    ctx->mark_dirty({x});
    if (auto saved = handle.maybe_load_saved()) return (*saved)[0];
    handle.save_for_backward({{"before", x.clone()}});
    return handle.record_outputs(x.mul_(x));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * 2 * ctx->get_saved_variables()[0]};
  }
};

/// Returns x itself, of which autograd makes a view before it saves the tensors of the handle.
at::Tensor same(RematHandle handle, const at::Tensor& x) {
  if (auto saved = handle.maybe_load_saved()) return (*saved)[0];
  handle.save_for_backward({{"x", x}});
  return handle.record_outputs(x);
}

struct Same : torch::autograd::Function<Same> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    return same(get_handle(ctx, "same", Policy::kSave), x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * ctx->get_saved_variables()[0]};
  }
};

struct SameOp : torch::autograd::Function<SameOp> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    return same(get_handle(ctx), x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return Same::backward(ctx, grads);
  }
};

/// A custom function that records its results in an inner call.
struct RecordsInside : torch::autograd::Function<RecordsInside> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    auto handle = get_handle(ctx, "outer", Policy::kSave);
    if (auto saved = handle.maybe_load_saved()) return (*saved)[0];
    return native_op([&](const at::Tensor& t) { return handle.record_outputs(t.exp()); }, "inner",
                     Policy::kSave)(x);
  }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return grads;
  }
};

using HandleFn = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

std::vector<at::Tensor> step(const HandleFn& fn, bool checkpointed) {
  torch::manual_seed(9);
  const at::Tensor x = torch::randn({4, 8}).requires_grad_();
  const at::Tensor y = torch::randn({4, 8}).requires_grad_();
  const at::Tensor out = checkpointed ? checkpoint({.name = "r"})(fn)(x, y) : fn(x, y);
  out.sin().sum().backward();
  return {out.detach(), x.grad(), y.grad()};
}

int check_handle_bitwise(const HandleFn& fn) {
  const auto expected = step(fn, false);
  body_runs = 0;
  const auto got = step(fn, true);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(got[i], expected[i]));
  return body_runs;
}

}  // namespace

TEST_CASE("A handle runs a SAVE body once and a RECOMPUTE body twice", "[backend][handle]") {
  const auto around = [](const auto& call) {
    return [call](const at::Tensor& x, const at::Tensor& y) {
      return call(x.sin(), y.cos()).tanh().exp();
    };
  };
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    handle_policy = policy;
    const int runs = policy == Policy::kSave ? 1 : 2;
    INFO(policy_name(policy));
    CHECK(check_handle_bitwise(around([](const auto&... in) { return ExpTimes::apply(in...); })) ==
          runs);
    CHECK(check_handle_bitwise(around(op<ExpTimesOp>("op", policy))) == runs);
    CHECK(check_handle_bitwise(around(op<ExpTimesAuto>("auto", policy))) == runs);
  }
}

TEST_CASE("A custom function that reads a SAVE call's result gets its value", "[backend][handle]") {
  for (const Policy policy : {Policy::kSave, Policy::kRecompute}) {
    handle_policy = policy;
    check_handle_bitwise([](const at::Tensor& x, const at::Tensor& y) {
      const auto a =
          native_op([](const at::Tensor& t) { return t.sin().exp(); }, "a", Policy::kSave)(x);
      return ExpTimes::apply(a, y.cos()).tanh().exp();
    });
  }
}

TEST_CASE("Tensors that a call saves after its handle ended stay apart from those of other calls",
          "[backend][handle]") {
  handle_policy = Policy::kSave;
  check_handle_bitwise([](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor a;
    {
      const torch::NoGradGuard no_grad;  // nothing is saved
      a = ExpTimes::apply(x.sin(), y);
    }
    const NameScope second("second");
    return (a * y).exp() * ExpTimes::apply(x.cos(), a * y).sin();
  });
}

TEST_CASE("Saved tensors of an op() call belong to the call, whatever its function returns",
          "[backend][handle]") {
  check_handle_bitwise([](const at::Tensor& x, const at::Tensor& y) {
    return op<SameOp>("same", Policy::kSave)(x.sin()).tanh() * y;
  });
  check_handle_bitwise([](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor view = (x * y).narrow(0, 0, 2);
    return op<SquareInPlaceOp>("square", Policy::kSave)(view).tanh();
  });
  check_handle_bitwise([](const at::Tensor& x, const at::Tensor& y) {
    op<SameOp>("same", Policy::kSave)(x);
    return (x * y).sin();
  });
}

TEST_CASE("A function that names itself and returns its input is refused in the forward",
          "[backend][handle]") {
  const at::Tensor x = torch::ones({4}).requires_grad_();
  const auto fn = [](const at::Tensor& t) { return Same::apply(t.sin()).tanh(); };
  CHECK_THAT(error_text([&] { checkpoint({.name = "r"})(fn)(x); }),
             ContainsSubstring("expected a new tensor or a view of an argument"));
}

TEST_CASE("Handles outside of regions only pass on", "[backend][handle]") {
  body_runs = 0;
  const at::Tensor x = torch::ones({2}).requires_grad_();
  op<ExpTimesOp>("op", Policy::kSave)(x, x).sum().backward();
  CHECK(body_runs == 1);
}

TEST_CASE("Misused handles raise in the forward", "[backend][handle]") {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  const auto in_region = [&](const auto& fn) {
    return error_text([&] { checkpoint({.name = "r"})(fn)(x); });
  };
  CHECK_THAT(
      in_region([](const at::Tensor& t) { return op<SavesThree>("three", Policy::kSave)(t); }),
      ContainsSubstring("[checkpoint] region 'r', call 'three' (SAVE): expected 2 saved "
                        "tensors, auto_forward save_for_backward names must match"));
  CHECK_THAT(in_region([](const at::Tensor& t) { return op<NoHandle>("none", Policy::kSave)(t); }),
             ContainsSubstring("[op] call 'none' (SAVE): expected a function that lists its "
                               "saved_names or calls get_handle(ctx)"));
  CHECK_THAT(in_region([](const at::Tensor& t) { return op<NoHandle>("", Policy::kSave)(t); }),
             ContainsSubstring("[op] name: expected a name, must be non-empty"));
  CHECK_THAT(in_region([](const at::Tensor& t) { return RecordsInside::apply(t.sin()); }),
             ContainsSubstring("[get_handle] call 'outer' (SAVE), record_outputs: expected to be "
                               "called in forward() itself"));
}

TEST_CASE("A SAVE handle that is not asked in the replay raises", "[backend][handle]") {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  CHECK_THAT(error_text([&] {
               checkpoint({.name = "r"})(
                   [](const at::Tensor& t) { return NeverLoads::apply(t.exp()).exp(); })(x)
                   .sum()
                   .backward();
             }),
             ContainsSubstring("must call maybe_load_saved"));
}

}  // namespace remat
