// SPDX-License-Identifier: BSD-3-Clause

// Checks that a replay's arguments have the same place in the graph as those of the forward.
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <vector>

#include "remat/remat.h"
#include "support/catch.h"
#include "support/same_bits.h"

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Call = std::function<Tensor(const std::function<Tensor(const Tensors&)>&, const Tensors&)>;

Tensor plain(const std::function<Tensor(const Tensors&)>& fn, const Tensors& arguments) {
  return fn(arguments);
}

Tensor region(const std::function<Tensor(const Tensors&)>& fn, const Tensors& arguments) {
  return remat::checkpoint({.name = "arguments"})(fn)(arguments);
}

/// Checks that the gradients that `step` returns are bitwise those of plain code.
void check_same(const std::function<Tensors(const Call&)>& step) {
  at::manual_seed(1);
  const Tensors expected = step(plain);
  at::manual_seed(1);
  const Tensors got = step(region);
  REQUIRE(expected.size() == got.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(same_bits(expected[i], got[i]));
}

Tensor leaf() {
  return at::randn({4, 4}).requires_grad_(true);
}

Tensor inner_grad(const Tensor& y, const Tensor& x) {
  return torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
}

TEST_CASE("A hook that the function sets on a leaf argument runs once", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensor y = call(
        [](const Tensors& in) {
          in[0].register_hook([](const Tensor& grad) { return grad * 2; });
          return in[0].sin();
        },
        {x});
    y.sum().backward();
    return Tensors{x.grad()};
  });
}

TEST_CASE("A hook that the function sets on an intermediate argument runs once",
          "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensor y = call(
        [](const Tensors& in) {
          in[0].register_hook([](const Tensor& grad) { return grad * 2; });
          return in[0].sin();
        },
        {x * 3});
    y.sum().backward();
    return Tensors{x.grad()};
  });
}

TEST_CASE("A hook that the function sets on a captured tensor runs once", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor w = leaf();
    const Tensor h = leaf() * 3;
    const Tensor part = w.slice(0, 0, 1);
    h.retain_grad();
    const Tensor y = call(
        [&](const Tensors& in) {
          for (const Tensor& captured : {w, h, part})
            captured.register_hook([](const Tensor& grad) { return grad * 2; });
          return (in[0].sin() * w * h).exp() * part;
        },
        {leaf()});
    h.register_hook([](const Tensor& grad) { return grad + 1; });
    y.sum().backward({}, /*retain_graph=*/true);
    const Tensor first = w.grad().clone();
    y.sum().backward();
    return Tensors{first, w.grad(), h.grad()};
  });
}

TEST_CASE("A hook that a region inside sets on what all capture runs once",
          "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensor w = leaf();
    const auto inner = [&](const Tensors& in) {
      w.register_hook([](const Tensor& grad) { return grad * 2; });
      return (in[0] * w).exp();
    };
    const auto outer = [&](const Tensors& in) {
      const Tensor h = in[0].sin();
      const Tensor y =
          call([&inner, h](const Tensors& seen) { return inner(seen) * h.exp(); }, {h});
      h.register_hook([](const Tensor& grad) { return grad * 3; });
      return y.sin();
    };
    call(outer, {x}).sum().backward();
    return Tensors{x.grad(), w.grad()};
  });
}

TEST_CASE("A hook on a captured buffer that the function brings into the graph runs once",
          "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensor buffer = at::zeros({4, 4});
    const Tensor y = call(
        [&](const Tensors& in) {
          buffer.copy_(in[0].sin());
          buffer.register_hook([](const Tensor& grad) { return grad * 2; });
          return in[0].exp() * buffer.cos();
        },
        {x});
    (y.sum() + buffer.exp().sum()).backward();
    return Tensors{x.grad()};
  });
}

TEST_CASE("A function may replace its own hook on a captured tensor", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor w = leaf();
    const auto number = std::make_shared<int64_t>(-1);
    const auto fn = [w, number](const Tensors& in) {
      if (*number >= 0) w.remove_hook(static_cast<unsigned>(*number));
      *number = w.register_hook([](const Tensor& grad) { return grad * 2; });
      return (in[0] * w).exp();
    };
    for (int i = 0; i < 3; ++i) call(fn, {leaf()}).sum().backward();
    return Tensors{w.grad()};
  });
}

TEST_CASE("Hooks on captured tensors that only SAVE calls read run once", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor w = leaf();
    const Tensor v = w.t();
    const auto fn = [w, v](const Tensors& in) {
      for (const Tensor& tensor : {v, w})
        tensor.register_hook([](const Tensor& grad) { return grad * 2; });
      const auto by = [](const Tensor& weight) {
        return [weight](const Tensor& x) { return x.matmul(weight); };
      };
      const Tensor h = remat::native_op(by(v), "v", remat::Policy::kSave)(in[0].sin());
      return remat::native_op(by(w), "w", remat::Policy::kSave)(h.exp());
    };
    call(fn, {leaf()}).sum().backward();
    return Tensors{w.grad()};
  });
}

TEST_CASE("A hook of each call runs once where calls write the tensor and take gradients inside",
          "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor b = leaf();
    const Tensor w = b * 2;
    const auto fn = [w](const Tensors& in) {
      w.register_hook([](const Tensor& grad) { return grad * 2; });
      const Tensor y = in[0] * w.tanh();
      w.add_(0.5);
      const Tensor z = y.detach().requires_grad_();
      return y + torch::autograd::grad({z.exp().sum()}, {z})[0];
    };
    call(fn, {call(fn, {call(fn, {leaf()})})}).sum().backward();
    return Tensors{b.grad()};
  });
}

TEST_CASE("Hooks on tensors whose memory the region writes run once", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor b = leaf();
    const Tensor h = b * 1;
    const Tensor k = b * 2;
    const Tensor v = h.slice(0, 0, 1);
    const Tensor u = k.slice(0, 0, 1);
    const auto by_view = [h, v](const Tensors& in) {
      v.mul_(2);
      h.register_hook([](const Tensor& grad) { return grad * 3; });
      return (h * in[0]).sin();
    };
    const auto by_base = [k, u](const Tensors& in) {
      k.mul_(2);
      const Tensor y = (u * in[0]).sin();
      u.register_hook([](const Tensor& grad) { return grad * 3; });
      return y;
    };
    (call(by_view, {leaf()}).sum() + call(by_base, {leaf()}).sum()).backward();
    return Tensors{b.grad()};
  });
}

TEST_CASE("A backward inside that passes a hook which the function has set is refused",
          "[backend][arguments]") {
  const Tensor w = leaf();
  const auto fn = [w](const Tensors& in) {
    w.register_hook([](const Tensor& grad) { return grad * 2; });
    (w * w).sum().backward();
    return (in[0] * w).sin();
  };
  const Tensor y = region(fn, {leaf()}).sum();
  CHECK_THROWS_WITH(y.backward(), ContainsSubstring("[replay] region 'arguments', slot ") &&
                                      ContainsSubstring("passes no hook"));
}

TEST_CASE("A backward inside adds once to what retains its gradient", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor w = leaf();
    const Tensor h = w.cos();
    h.retain_grad();
    const auto fn = [h](const Tensors& in) {
      (h * h).sum().backward({}, /*retain_graph=*/true);
      return (in[0] * h * h.grad().detach()).exp();
    };
    call(fn, {leaf()}).sum().backward();
    return Tensors{h.grad(), w.grad()};
  });
}

TEST_CASE("A hook that is set before a region stays", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor w = leaf();
    w.register_hook([](const Tensor& grad) { return grad * 2; });
    const Tensor y = call([&](const Tensors& in) { return (in[0] * w).exp(); }, {leaf()});
    w.register_hook([](const Tensor& grad) { return grad * 3; });
    y.sum().backward({}, /*retain_graph=*/true);
    y.sum().backward();
    return Tensors{w.grad()};
  });
}

TEST_CASE("A caller's hook on an argument acts on a gradient taken inside the region",
          "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensor h = x * 3;
    h.register_hook([](const Tensor& grad) { return grad * 2; });
    const Tensor y = call(
        [](const Tensors& in) { return (inner_grad(in[0].sin() * in[0], in[0]) * in[0]).exp(); },
        {h});
    y.sum().backward();
    return Tensors{x.grad()};
  });
}

TEST_CASE("A tensor passed twice is one tensor in the replay", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensor h = x.tanh();
    const Tensor y = call(
        [](const Tensors& in) {
          const Tensor grad = inner_grad(in[0] * in[1], in[0]);
          return in[0].is_same(in[1]) ? (grad * in[0]).sin() : grad;
        },
        {h, h});
    y.sum().backward();
    return Tensors{x.grad()};
  });
}

TEST_CASE("A gradient inside the region follows one argument to another", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensor h = x.tanh();
    const Tensor energy = h.sin() * h;
    const Tensor y = call(
        [](const Tensors& in) { return (inner_grad(in[1], in[0]) * in[0]).exp(); }, {h, energy});
    y.sum().backward();
    return Tensors{x.grad()};
  });
}

TEST_CASE("Two outputs of one node are two arguments", "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensors halves = x.tanh().unsafe_split(2);
    const Tensor y = call(
        [](const Tensors& in) {
          return (inner_grad(in[0].sin() * in[1].cos(), in[1]) * in[0]).exp();
        },
        halves);
    y.sum().backward();
    return Tensors{x.grad()};
  });
}

TEST_CASE("Weights frozen or unfrozen between forward and backward are as in the forward",
          "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor w = at::randn({4, 4});
    const Tensor v = leaf();
    const Tensor x = leaf();
    const Tensor y = call([w, v](const Tensors& in) { return in[0].matmul(w).matmul(v); }, {x});
    w.requires_grad_(true);
    v.requires_grad_(false);
    y.sum().backward();
    CHECK(w.requires_grad());
    CHECK_FALSE(v.requires_grad());
    CHECK_FALSE(w.grad().defined());
    return Tensors{x.grad(), v.grad()};
  });
}

TEST_CASE("A weight unfrozen between forward and a backward with create_graph is an error",
          "[backend][arguments]") {
  const Tensor w = at::randn({4, 4});
  const Tensor x = leaf();
  const Tensor y = region([w](const Tensors& in) { return in[0].matmul(w); }, {x});
  w.requires_grad_(true);
  CHECK_THROWS_WITH(
      inner_grad(y, x),
      ContainsSubstring("region 'arguments', slot 0") &&
          ContainsSubstring("requires_grad differs: a parameter has been frozen or unfrozen"));
}

TEST_CASE("A region that cuts its argument off holds nothing of its graph",
          "[backend][arguments]") {
  const auto alive = std::make_shared<int>(0);
  Tensor state = leaf();
  const Tensor w = leaf();
  for (int i = 0; i < 10; ++i) {
    state = region([w, alive](const Tensors& in) { return (in[0].detach() * w).sin(); }, {state});
  }
  // Only the last region's graph is reachable; its function holds `alive`, and so do we.
  CHECK(alive.use_count() == 2);
}

TEST_CASE("Adding a region's result to its argument in place makes no cycle",
          "[backend][arguments]") {
  const auto alive = std::make_shared<int>(0);
  {
    const Tensor h = leaf() * 1;
    const Tensor out = region([alive](const Tensors& in) { return (in[0] + 1).sin(); }, {h});
    h.add_(out);
  }
  CHECK(alive.use_count() == 1);
}

struct SavesWhenItDies {
  Tensor x;
  ~SavesWhenItDies() { x.sin(); }
};

TEST_CASE("A destructor that saves tensors does not meet the stop while it unwinds",
          "[backend][arguments]") {
  check_same([](const Call& call) {
    const Tensor x = leaf();
    const Tensor y = call(
        [](const Tensors& in) {
          const SavesWhenItDies guard{in[0]};
          return in[0].exp().sin();
        },
        {x});
    Tensor loss = y.sum();
    loss.backward();
    return Tensors{x.grad()};
  });
}

}  // namespace
