// SPDX-License-Identifier: BSD-3-Clause

// Named calls: number of runs, kept tensors, and bitwise equal gradients.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/named_step.h"
#include "support/same_bits.h"
#include "support/unwound.h"

namespace remat {
namespace {

at::Tensor input() {
  torch::manual_seed(5);
  return torch::randn({4, 8}).requires_grad_();
}

/// Returns the gradients of the input and of `extra` after one step of `fn`, plain or in a region.
std::vector<at::Tensor> grads(const TensorFn& fn, bool checkpointed,
                              const std::vector<at::Tensor>& extra = {},
                              const CheckpointOptions& options = {.name = "r"}) {
  const at::Tensor x = input();
  for (at::Tensor tensor : extra) tensor.mutable_grad() = at::Tensor();
  const at::Tensor y = checkpointed ? checkpoint(options)(fn)(x) : fn(x);
  (y * y.detach()).sum().backward();
  std::vector<at::Tensor> result{y.detach(), x.grad()};
  for (const at::Tensor& tensor : extra) result.push_back(tensor.grad());
  return result;
}

void check_bitwise(const TensorFn& fn, const std::vector<at::Tensor>& extra = {}) {
  check_same(grads(fn, true, extra), grads(fn, false, extra));
}

}  // namespace

TEST_CASE("A SAVE call runs once, a RECOMPUTE call twice", "[backend][native_op]") {
  int saved = 0;
  int recomputed = 0;
  const TensorFn fn = [&](const at::Tensor& x) {
    const auto a = native_op([&](const at::Tensor& t) { return ++saved, t.sin().exp(); }, "a",
                             Policy::kSave)(x);
    const auto b = native_op([&](const at::Tensor& t) { return ++recomputed, t.cos().exp(); }, "b",
                             Policy::kRecompute)(a);
    return b.tanh();
  };
  const auto got = grads(fn, true);
  CHECK(saved == 1);
  CHECK(recomputed == 2);
  check_same(got, grads(fn, false));
}

TEST_CASE("Module holders and mutable functions can be named", "[backend][native_op]") {
  torch::nn::Linear linear(8, 8);
  check_bitwise(
      [linear](const at::Tensor& x) {
        const auto a = native_op(linear, "holder", Policy::kSave)(x.sin());
        const auto forward = [linear](const at::Tensor& t) mutable { return linear(t); };
        return native_op(forward, "lambda", Policy::kSave)(a.cos()).exp();
      },
      {linear->weight, linear->bias});
}

TEST_CASE("A region of SAVE calls only is not replayed", "[backend][native_op]") {
  int runs = 0;
  const TensorFn fn = [&](const at::Tensor& x) {
    ++runs;
    const auto a = native_op([](const at::Tensor& t) { return t.sin(); }, "a", Policy::kSave)(x);
    return native_op([](const at::Tensor& t) { return t.exp(); }, "b", Policy::kSave)(a);
  };
  const auto got = grads(fn, true);
  CHECK(runs == 1);
  check_same(got, grads(fn, false));
}

TEST_CASE("A replay fills the saved tensor of a SAVE call whose argument is recomputed",
          "[backend][native_op]") {
  const at::Tensor w = torch::randn({8, 8}).requires_grad_();
  const TensorFn fn = [&](const at::Tensor& x) {
    const auto h = x.sin();  // bare, recomputed
    const auto y =
        native_op([&](const at::Tensor& t) { return t.matmul(w); }, "mm", Policy::kSave)(h);
    const auto z = native_op([&](const at::Tensor& t) { return t.t().t().narrow(1, 2, 3).pow(2); },
                             "view", Policy::kSave)(y.cos());
    return z.exp();
  };
  check_bitwise(fn, {w});
}

TEST_CASE("Results of every shape come back in a replay", "[backend][native_op]") {
  using Tuple = std::tuple<at::Tensor, std::vector<at::Tensor>, std::map<std::string, at::Tensor>>;
  const TensorFn fn = [&](const at::Tensor& x) {
    const auto call = native_op(
        [](const at::Tensor& t) {
          return Tuple{t.sin(), {t.cos(), at::Tensor()}, {{"e", t.exp()}, {"t", t.tanh()}}};
        },
        "all", Policy::kSave);
    const auto [a, list, map] = call(x.sigmoid());
    CHECK(list.size() == 2);
    CHECK_FALSE(list[1].defined());
    return (a * list[0]).sin() + map.at("e").cos() * map.at("t");
  };
  check_bitwise(fn);
}

TEST_CASE("Random numbers of a skipped call are skipped too", "[backend][native_op]") {
  const TensorFn fn = [&](const at::Tensor& x) {
    const auto a = native_op([](const at::Tensor& t) { return torch::dropout(t, 0.5, true); },
                             "drop", Policy::kSave)(x.sin());
    return torch::dropout(a.exp(), 0.5, true).sin();
  };
  check_bitwise(fn);
}

TEST_CASE("Weights that a SAVE call cast are cast again by a replay", "[backend][native_op]") {
  const at::Tensor w = torch::randn({8, 8}).requires_grad_();
  const TensorFn fn = [&](const at::Tensor& x) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const auto matmul = [&](const at::Tensor& t) { return t.matmul(w); };
    const auto y = matmul(native_op(matmul, "first", Policy::kSave)(x)).to(at::kFloat).sin();
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return y;
  };
  check_bitwise(fn, {w});
}

TEST_CASE("In-place SAVE calls leave their argument as in the forward", "[backend][native_op]") {
  const at::Tensor w = torch::randn({4, 8}).requires_grad_();
  SECTION("read by a bare op afterwards") {
    check_bitwise(
        [&](const at::Tensor& x) {
          at::Tensor h = x.sin();
          native_op([&](at::Tensor& t) { t.mul_(w); }, "mul", Policy::kSave)(h);
          return h.cos().exp();
        },
        {w});
  }
  SECTION("returned and read") {
    check_bitwise(
        [&](const at::Tensor& x) {
          at::Tensor h = x.sin();
          const auto y =
              native_op([&](at::Tensor& t) { return t.relu_(); }, "relu", Policy::kSave)(h);
          return (y.cos() * h).exp();
        },
        {w});
  }
  SECTION("of another SAVE call's result") {
    check_bitwise(
        [&](const at::Tensor& x) {
          at::Tensor h =
              native_op([](const at::Tensor& t) { return t.sin(); }, "a", Policy::kSave)(x);
          const auto before = h + 1;
          native_op([&](at::Tensor& t) { t.add_(w); }, "b", Policy::kSave)(h);
          return h.cos().exp() * before;
        },
        {w});
  }
  SECTION("a bare op writes a SAVE call's result") {
    check_bitwise(
        [&](const at::Tensor& x) {
          at::Tensor h =
              native_op([](const at::Tensor& t) { return t.sin() + 1; }, "a", Policy::kSave)(x);
          const auto before = h.exp();
          h.mul_(2);
          return h.cos().exp() * before;
        },
        {w});
  }
}

TEST_CASE("A call kept in all regions leaves buffers and generators as in the forward",
          "[backend][native_op]") {
  int runs = 0;
  const auto run = [&](bool checkpointed) {
    torch::manual_seed(3);
    torch::nn::BatchNorm1d norm(8);
    const TensorFn inner = [&](const at::Tensor& x) {
      const auto call = [&](const at::Tensor& t) {
        ++runs;
        return torch::dropout(norm->forward(t), 0.5, true);
      };
      const auto y = native_op(call, "bn", Policy::kSave, Keep::kAllRegions)(x.sin());
      return torch::dropout((y * norm->running_mean).exp(), 0.5, true);
    };
    const TensorFn outer = [&](const at::Tensor& x) {
      return (checkpointed ? checkpoint()(inner)(x.cos()) : inner(x.cos())).sin();
    };
    auto all = grads(outer, checkpointed, {norm->weight, norm->bias});
    all.push_back(norm->running_mean.clone());
    all.push_back(norm->running_var.clone());
    return all;
  };
  const auto got = run(true);
  CHECK(runs == 1);
  check_same(got, run(false));
}

TEST_CASE("An argument of the region that a SAVE call wrote goes into an inner region as written",
          "[backend][native_op]") {
  check_bitwise([](const at::Tensor& x) {
    at::Tensor h = x.sin();
    return checkpoint({.name = "outer"})([](at::Tensor t) {
      const auto before = t.cos();
      native_op([](at::Tensor& in) { in.detach().add_(1); }, "add", Policy::kSave)(t);
      const auto after =
          checkpoint({.name = "inner"})([](const at::Tensor& in) { return in.exp().sin(); })(t);
      return after * before.detach();
    })(h);
  });
}

TEST_CASE("A call kept in all regions is a part of the SAVE call around it",
          "[backend][native_op]") {
  const auto halve = [](at::Tensor& t) { t.detach().mul_(0.5); };
  const auto call = [halve](at::Tensor& t) {
    native_op(halve, "halve", Policy::kSave, Keep::kAllRegions)(t);
    return t.cos();
  };
  const TensorFn inner = [call](const at::Tensor& x) {
    at::Tensor h = x.clone();
    const auto y = native_op(call, "call", Policy::kSave)(h);
    return y * h.exp().detach();  // reads what the call 'halve' wrote
  };
  check_bitwise([inner](const at::Tensor& x) {
    return checkpoint({.name = "outer"})([inner](const at::Tensor& t) {
      return checkpoint({.name = "inner"})(inner)(t.sin()).sin();
    })(x);
  });
}

TEST_CASE("A skipped call counts as a write to what it has written", "[backend][native_op]") {
  const auto halve = [](at::Tensor& t) { return t.mul_(0.5); };
  const TensorFn inner = [halve](const at::Tensor& x) {
    at::Tensor t = x.clone();
    const at::Tensor saves = t.sin();  // No backward reads what sin has saved.
    const at::Tensor half = native_op(halve, "halve", Policy::kSave, Keep::kAllRegions)(t);
    const at::Tensor leaf = saves.detach().requires_grad_();
    leaf.cos().sum().backward();
    half.clone();
    return saves;
  };
  check_bitwise([inner](const at::Tensor& x) {
    return checkpoint({.name = "outer"})([inner](const at::Tensor& t) {
      const at::Tensor y = checkpoint({.name = "inner"})(inner)(t);
      return t.sin() + y.detach();
    })(x);
  });
}

TEST_CASE("An inner region may write a result that an outer replay does not have",
          "[backend][native_op]") {
  const auto shrink = [](at::Tensor& t) {
    t.detach().mul_(0.5);
    return t.detach() * 2;
  };
  const TensorFn inner = [shrink](const at::Tensor& x) {
    at::Tensor t = x;
    return native_op(shrink, "shrink", Policy::kSave, Keep::kAllRegions)(t).exp();
  };
  check_bitwise([inner](const at::Tensor& x) {
    const auto a =
        native_op([](const at::Tensor& t) { return t.sin(); }, "a", Policy::kSave)(x.cos());
    return checkpoint({.name = "inner"})(inner)(a).sin() * x.exp();
  });
}

TEST_CASE("A replay that gets fewer tensors for a SAVE call raises", "[backend][native_op]") {
  const at::Tensor x = input();
  const auto fn = [](const at::Tensor& t) {
    std::vector<at::Tensor> in;
    if (!is_recomputing()) in.push_back(t.sin());
    const auto turn = [](const std::vector<at::Tensor>& list) { return list[0].t(); };
    return native_op(turn, "turn", Policy::kSave)(in).exp();
  };
  const at::Tensor y = checkpoint({.name = "r"})(fn)(x);
  CHECK_THAT(
      error_text([&] { y.sum().backward(); }),
      ContainsSubstring("[replay] region 'r', call 'turn' (SAVE): expected tensor argument 0 "
                        "as in the forward"));
}

// [cpu]: the CUDA stand-in computes no kernel of sparse tensors.
TEST_CASE("Sparse results of SAVE calls are known in the replay", "[backend][native_op][cpu]") {
  check_bitwise([](const at::Tensor& x) {
    const auto s = native_op([](const at::Tensor& t) { return t.to_sparse(); }, "sparse",
                             Policy::kSave)(x.sin());
    return s.to_dense().exp();
  });
}

TEST_CASE("SAVE calls refuse what a replay could not leave out", "[backend][native_op]") {
  const auto refusal = [](const TensorFn& fn) {
    return error_text([&] { checkpoint({.name = "r"})(fn)(input()); });
  };
  CHECK_THAT(refusal([](const at::Tensor& x) {
               const at::Tensor s = x.sin().detach().to_sparse().coalesce();
               native_op([](const at::Tensor& t) { t._values().mul_(2); }, "values",
                         Policy::kSave)(s);
               return x * s.to_dense();
             }),
             ContainsSubstring("op aten::mul_.Scalar: expected to write strided arguments"));
  CHECK_THAT(refusal([](const at::Tensor& x) {
               const at::Tensor h = native_op(
                   [](const at::Tensor& t) {
                     const c10::InferenceMode inference;
                     return t.detach() * 2;
                   },
                   "inference", Policy::kSave)(x.sin());
               return x.cos() * h.clone();
             }),
             ContainsSubstring("expected a normal tensor, got an inference tensor"));
}

namespace {

struct NoTickets : OffloadStore {
  std::shared_ptr<Ticket> put(const at::Tensor& /*tensor*/) override { return nullptr; }
};

}  // namespace

TEST_CASE("A store without a ticket raises in the forward", "[backend][native_op]") {
  CHECK_THAT(error_text([] {
               checkpoint({.name = "r", .offload_store = std::make_shared<NoTickets>()})(
                   [](const at::Tensor& t) {
                     return native_op([](const at::Tensor& in) { return in.exp(); }, "exp",
                                      Policy::kOffload)(t.sin());
                   })(input());
             }),
             ContainsSubstring("[OffloadStore] put: expected a ticket"));
}

TEST_CASE("Batch norm in a SAVE call updates its statistics once", "[backend][native_op]") {
  const auto run = [](bool checkpointed) {
    torch::manual_seed(3);
    torch::nn::BatchNorm1d norm(8);
    const TensorFn fn = [&](const at::Tensor& x) {
      const auto y = native_op([&](const at::Tensor& t) { return norm->forward(t); }, "bn",
                               Policy::kSave)(x.sin());
      return (y * norm->running_mean).exp();
    };
    auto all = grads(fn, checkpointed, {norm->weight, norm->bias});
    all.push_back(norm->running_mean.clone());
    all.push_back(norm->running_var.clone());
    all.push_back(norm->num_batches_tracked.clone());
    return all;
  };
  check_same(run(true), run(false));
}

}  // namespace remat
