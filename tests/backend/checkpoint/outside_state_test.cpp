// SPDX-License-Identifier: BSD-3-Clause

// State outside a region that its function reads and writes. It is as after one forward, with the
// gradients of plain code, or an error is raised; a gradient is never silently wrong.
#include <remat/remat.h>

#include "support/catch.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <any>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/default_device.h"
#include "support/same_bits.h"
#include "support/unwound.h"

namespace {

using remat::checkpoint;
using Tensor = at::Tensor;
using Tensors = std::vector<Tensor>;

// A model with state: forward(x), and the tensors that must be in the state after one forward.
struct Stateful {
  std::function<Tensor(const Tensor&)> forward;
  std::function<Tensors()> state;
};

using StatefulCall = std::function<Tensor(const Stateful&, const Tensor&)>;

Tensor plain_call(const Stateful& model, const Tensor& x) {
  return model.forward(x);
}

Tensor in_region(const Stateful& model, const Tensor& x) {
  return checkpoint({.name = "state"})(model.forward)(x);
}

Tensor in_two_regions(const Stateful& model, const Tensor& x) {
  return checkpoint({.name = "outer"})(
      [model](const Tensor& t) { return in_region(model, in_region(model, t).sin()); })(x);
}

Tensor plain_twice(const Stateful& model, const Tensor& x) {
  return model.forward(model.forward(x).sin());
}

// Returns outputs, gradients, and the state after forward, backward and a second backward. Returns
// nothing if autograd raises because a saved tensor was written, as it does where state is written
// twice before backward.
Tensors train(const std::function<Stateful()>& make, const StatefulCall& call) {
  torch::manual_seed(11);
  const Stateful model = make();
  const Tensor x = torch::randn({4, 6}).requires_grad_();
  Tensors results;
  const auto note = [&] {
    for (const Tensor& tensor : model.state()) results.push_back(tensor.detach().clone());
  };
  for (int step = 0; step < 2; ++step) try {
      const Tensor y = call(model, x * 1);
      results.push_back(y.detach().clone());
      note();
      y.square().sum().backward({}, /*retain_graph=*/true);
      note();
      y.square().sum().backward();
      note();
      results.push_back(x.grad().clone());
    } catch (const c10::Error& error) {
      CHECK_THAT(error.what(), ContainsSubstring("modified by an inplace operation"));
      return {};
    }
  return results;
}

void check_same_tensors(const Tensors& expected, const Tensors& got) {
  REQUIRE(expected.size() == got.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(expected[i], got[i]));
  }
}

void check_as_plain(const std::function<Stateful()>& make) {
  const Tensors expected = train(make, plain_call);
  REQUIRE_FALSE(expected.empty());
  check_same_tensors(expected, train(make, in_region));
  check_same_tensors(train(make, plain_twice), train(make, in_two_regions));
}

template <class Holder>
Stateful stateful(Holder module) {
  return {[module](const Tensor& x) mutable { return module->forward(x); },
          [module] { return module->buffers(); }};
}

TEST_CASE("Batch norm's statistics are written once", "[backend][outside]") {
  check_as_plain([] { return stateful(torch::nn::BatchNorm1d(6)); });
  check_as_plain([] {
    return stateful(torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6),
                                          torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                                          torch::nn::Linear(6, 6)));
  });
}

TEST_CASE("Batch norm in evaluation is only read", "[backend][outside]") {
  check_as_plain([] {
    torch::nn::BatchNorm1d norm(6);
    norm->eval();
    return stateful(norm);
  });
}

TEST_CASE("Instance norm with statistics is written once", "[backend][outside]") {
  check_as_plain([] {
    torch::nn::InstanceNorm1d norm(torch::nn::InstanceNorm1dOptions(2).track_running_stats(true));
    return Stateful{[norm](const Tensor& x) mutable {
                      return norm(x.view({4, 2, 3})).view({4, 6});
                    },
                    [norm] { return norm->buffers(); }};
  });
}

TEST_CASE("A spectral norm's power iteration is done once", "[backend][outside]") {
  check_as_plain([] {
    const Tensor weight = torch::randn({6, 6});
    const Tensor u = torch::randn({6});
    return Stateful{[weight, u](const Tensor& x) {
                      Tensor v;
                      {
                        const at::NoGradGuard no_grad;
                        v = at::mv(weight.t(), u);
                        v.div_(v.norm());
                        at::mv_out(const_cast<Tensor&>(u), weight, v);  // NOLINT
                        u.div_(u.norm());
                      }
                      const Tensor sigma = at::dot(u, at::mv(weight, v));
                      return x.matmul((weight / sigma).t()).tanh();
                    },
                    [u] { return Tensors{u}; }};
  });
}

TEST_CASE("A key-value cache is filled once by index_put_ and copy_", "[backend][outside]") {
  check_as_plain([] {
    const Tensor cache = torch::zeros({8, 6});
    return Stateful{[cache](const Tensor& x) {
                      const Tensor rows = torch::arange(4);
                      {
                        const at::NoGradGuard no_grad;
                        const_cast<Tensor&>(cache).index_put_({rows}, x.detach());  // NOLINT
                        cache.narrow(0, 4, 4).copy_(x.detach() * 2);
                      }
                      return (x.matmul(cache.t()).softmax(1).matmul(cache)).sin();
                    },
                    [cache] { return Tensors{cache}; }};
  });
}

TEST_CASE("A counter that the function reads and adds to counts once", "[backend][outside]") {
  check_as_plain([] {
    const Tensor count = torch::ones({});
    return Stateful{[count](const Tensor& x) {
                      count.add_(1);
                      return (x * count).sin();
                    },
                    [count] { return Tensors{count}; }};
  });
}

TEST_CASE("Writes through views, foreach ops, out= and data() are done once",
          "[backend][outside]") {
  check_as_plain([] {
    const Tensors buffers = {torch::ones({6}), torch::ones({4, 6}), torch::ones({6, 4})};
    return Stateful{[buffers](const Tensor& x) {
                      const at::Tensor scale = buffers[0] * 1;
                      {
                        const at::NoGradGuard no_grad;
                        at::_foreach_mul_(buffers, 1.5);
                        buffers[1].t()[2].fill_(3);
                        at::add_out(const_cast<Tensor&>(buffers[2]), buffers[2], 1);  // NOLINT
                        buffers[0].data().add_(0.5);
                      }
                      return (x * scale + buffers[1]).sin().matmul(buffers[2]).matmul(buffers[1]);
                    },
                    [buffers] { return buffers; }};
  });
}

TEST_CASE("A memory that gradients flow through is as plain", "[backend][outside]") {
  // The write makes the buffer part of the graph.
  const auto run = [](bool checkpointed) {
    torch::manual_seed(5);
    const Tensor x = torch::randn({4, 4}).requires_grad_();
    const Tensor memory = torch::zeros({4, 4});
    const auto fn = [memory](const Tensor& t) {
      memory.add_(t.sin());
      return (memory * t).exp();
    };
    const Tensor h = x * 1;
    const Tensor y = checkpointed ? checkpoint()(fn)(h) : fn(h);
    (y + memory).sum().backward();
    return Tensors{y.detach(), memory.detach(), x.grad()};
  };
  check_same_tensors(run(false), run(true));
}

// A tensor that is only read and never saved: plain code needs no old value, but a replay does.
TEST_CASE("A tensor that is only read, written before backward, raises with region, op and tensor",
          "[backend][outside]") {
  const std::vector<std::function<void(Tensor&)>> writes = {
      [](Tensor& c) { c.add_(1); },
      [](Tensor& c) { c[1].zero_(); },
      [](Tensor& c) { c.detach().mul_(2); },
      [](Tensor& c) {
        c.mutable_grad() = torch::ones_like(c);
        torch::optim::AdamW(Tensors{c}, /*lr=*/0.1).step();
      },
  };
  for (size_t i = 0; i < writes.size(); ++i) {
    CAPTURE(i);
    Tensor c = torch::rand({4, 4}).requires_grad_(i == 3);
    const Tensor x = torch::rand({4, 4}).requires_grad_();
    const Tensor y =
        checkpoint({.name = "reader"})([c](const Tensor& t) { return (t + c).sin(); })(x);
    {
      const at::NoGradGuard no_grad;
      writes[i](c);
    }
    CHECK_THAT(error_text([&] { y.sum().backward(); }),
               ContainsSubstring(remat::on_default_device(
                   "modified by an inplace operation: [float32 [4, 4] on cpu] is at "
                   "version ")) &&
                   ContainsSubstring("[replay] region 'reader', slot 0, op aten::add.Tensor: "
                                     "expected the tensor from outside the region as the forward "
                                     "read it."));
  }
}

TEST_CASE("A tensor written after the region's last backward is no concern", "[backend][outside]") {
  const Tensor c = torch::rand({4, 4});
  const Tensor x = torch::rand({4, 4}).requires_grad_();
  for (int step = 0; step < 3; ++step) {
    checkpoint()([c](const Tensor& t) { return (t + c).sin(); })(x).sum().backward();
    c.add_(1);
  }
}

TEST_CASE("Rebinding by cat raises and says why", "[backend][outside]") {
  auto cache = std::make_shared<Tensor>(torch::rand({2, 4}));
  const auto fn = [cache](const Tensor& x) {
    *cache = at::cat({*cache, x});
    return cache->sin().sum(0);
  };
  const Tensor y = checkpoint({.name = "cat"})(fn)(torch::rand({2, 4}).requires_grad_());
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring("[replay] region 'cat', slot 0, op 0: expected aten::cat(") &&
                 ContainsSubstring("A shape differs: a cache that has grown"));
  *cache = Tensor();  // Breaks a cycle: the cache holds the graph, and the graph the function,
                      // which holds the cache.
}

TEST_CASE("Rebinding that keeps the shape raises too, whether the old tensor lives or not",
          "[backend][outside]") {
  for (const bool old_lives : {false, true}) {
    auto hidden = std::make_shared<Tensor>(torch::rand({4, 4}));
    const Tensor old = old_lives ? *hidden : Tensor();
    const auto fn = [hidden](const Tensor& x) {
      *hidden = (*hidden + x).tanh();
      return *hidden * 2;
    };
    const Tensor y = checkpoint({.name = "rnn"})(fn)(torch::rand({4, 4}).requires_grad_());
    CHECK_THAT(
        error_text([&] { y.sum().backward(); }),
        ContainsSubstring("[replay] region 'rnn', slot 0, op 0: expected aten::add.Tensor("));
    *hidden = Tensor();  // Breaks the cycle of tensor, graph and function.
  }
}

TEST_CASE("Tensors that the function makes are no state", "[backend][outside]") {
  // Factories of every kind, memory of the user and constants: the replay makes them again.
  const auto fn = [](const Tensor& x) {
    std::vector<float> values(16, 0.5F);
    Tensor y = x + torch::from_blob(values.data(), {4, 4}).to(x.device());
    y = y * torch::ones({4, 4}) + torch::tensor({1.0F, 2.0F, 3.0F, 4.0F}, x.device());
    Tensor made = torch::zeros({4, 4});
    made.index_put_({torch::arange(4), torch::arange(4)}, torch::full({4}, 2.0));
    y = at::where(y > 1, y, 0.5).sin() * made.add_(torch::eye(4));
    return y.masked_fill(torch::ones({4, 4}, at::kBool).triu(1), -1.0).softmax(1);
  };
  const Tensor x = torch::rand({4, 4}).requires_grad_();
  const Tensor expected = torch::autograd::grad({fn(x).square().sum()}, {x})[0];
  for (int i = 0; i < 20; ++i) {
    const Tensor y = checkpoint()(fn)(x);
    CHECK(same_bits(torch::autograd::grad({y.square().sum()}, {x})[0], expected));
  }
}

TEST_CASE("Memory wrapped by from_blob may be used and written again and again",
          "[backend][outside]") {
  std::vector<float> memory(4);
  const auto fn = [&memory](const Tensor& x) {
    std::fill(memory.begin(), memory.end(), 2.0F);
    const Tensor u = torch::from_blob(memory.data(), {4});
    const Tensor y = x * u.clone().to(x.device()) + (x * (u + 1).to(x.device())).sin();
    u.add_(1);
    return (y * u.clone().to(x.device())).exp();
  };
  const Tensor x = torch::rand({4}).requires_grad_();
  const Tensor expected = torch::autograd::grad({fn(x).sum()}, {x})[0];
  CHECK(same_bits(torch::autograd::grad({checkpoint()(fn)(x).sum()}, {x})[0], expected));
}

// [cpu]: the CUDA stand-in computes no kernel of sparse or quantized tensors.
TEST_CASE("Sparse tensors from outside are watched, and may not be written",
          "[backend][outside][cpu]") {
  const Tensor x = torch::rand({4, 4}).requires_grad_();
  const Tensor sparse = torch::eye(4).to_sparse();
  const auto reads = [sparse](const Tensor& t) { return (t + sparse.to_dense()).sin(); };
  const Tensor y = checkpoint({.name = "sparse"})(reads)(x);
  y.sum().backward({}, /*retain_graph=*/true);
  CHECK(same_bits(x.grad(), (x.detach() + torch::eye(4)).cos()));
  sparse.mul_(2);
  CHECK_THAT(error_text([&] { y.sum().backward(); }), ContainsSubstring("region 'sparse', slot 0"));
  const auto writes = [sparse](const Tensor& t) {
    sparse.mul_(2);
    return (t * sparse.to_dense()).sin();
  };
  CHECK_THAT(error_text([&] { checkpoint({.name = "sparse"})(writes)(x); }),
             ContainsSubstring(remat::on_default_device(
                 "[checkpoint] region 'sparse', op aten::mul_.Scalar: expected "
                 "in-place ops on strided tensors from outside the region, got one "
                 "on a sparse or opaque tensor (float32 [4, 4] on cpu)")));
}

TEST_CASE("A quantized tensor is written once", "[backend][outside][cpu]") {
  check_as_plain([] {
    const Tensor q = torch::quantize_per_tensor(torch::ones({4, 6}), 0.1, 10, torch::kQUInt8);
    return Stateful{[q](const Tensor& x) {
                      q.copy_(x.detach());
                      return (x * q.dequantize()).sin();
                    },
                    [q] { return Tensors{q.int_repr()}; }};
  });
}

TEST_CASE("An argument that is written comes back from hooks in its own place",
          "[backend][outside]") {
  const remat::SavedTensorsHooks contiguous{
      .pack = [](const Tensor& t) -> std::any { return t.contiguous().clone(); },
      .unpack = [](const std::any& packed) { return std::any_cast<const Tensor&>(packed); }};
  const auto run = [&](bool checkpointed, const std::function<Tensor(const Tensor&)>& view) {
    torch::manual_seed(2);
    const Tensor x = torch::rand({2, 4}).requires_grad_();
    const Tensor base = torch::rand({8, 4});
    const Tensor a = view(base);
    const auto fn = [](const Tensor& t, Tensor& written) {
      written.add_(1);
      return (t * written.clone()).sin();
    };
    Tensor y;
    if (checkpointed) {
      y = checkpoint({.saved_tensors_hooks = contiguous})(fn)(x, a);
    } else {
      Tensor same = a;
      y = fn(x, same);
    }
    y.sum().backward();
    return Tensors{y.detach(), base, x.grad()};
  };
  for (const auto& view : std::vector<std::function<Tensor(const Tensor&)>>{
           [](const Tensor& base) { return base.slice(0, 4, 6); },
           [](const Tensor& base) { return base.slice(0, 0, 4).t().slice(0, 2, 4); },
           [](const Tensor& base) { return base.slice(0, 0, 4, 2); }}) {
    check_same_tensors(run(false, view), run(true, view));
  }
}

TEST_CASE("User hooks around a region do not meet what it keeps of written state",
          "[backend][outside]") {
  const Tensor count = torch::ones({});
  const auto fn = [count](const Tensor& x) {
    count.add_(1);
    return (x * count).sin();
  };
  const remat::SavedTensorsHooks to_double{
      .pack = [](const Tensor& t) -> std::any { return t.to(at::kDouble); },
      .unpack =
          [](const std::any& packed) {
            return std::any_cast<const Tensor&>(packed).to(at::kFloat);
          }};
  const Tensor x = torch::rand({4}).requires_grad_();
  const remat::SavedTensorsHooksGuard guard(to_double);
  checkpoint()(fn)(x).sum().backward();
  CHECK(same_bits(count, torch::full({}, 2.0F)));
}

TEST_CASE("Batch norm under autocast in nested regions is as plain", "[backend][outside]") {
  const auto run = [](bool checkpointed) {
    torch::manual_seed(4);
    torch::nn::Linear linear(4, 4);
    torch::nn::BatchNorm1d norm(4);
    const auto inner = [first = linear.ptr(), second = norm.ptr()](const Tensor& t) {
      return second->forward(first->forward(t)).sin();
    };
    const auto outer = [inner, checkpointed](const Tensor& t) {
      return (checkpointed ? checkpoint({.name = "inner"})(inner)(t) : inner(t)) * 2;
    };
    const Tensor x = torch::rand({4, 4}).requires_grad_();
    at::autocast::set_autocast_enabled(remat::default_device().type(), true);
    const Tensor y = checkpointed ? checkpoint({.name = "outer"})(outer)(x) : outer(x);
    at::autocast::set_autocast_enabled(remat::default_device().type(), false);
    at::autocast::clear_cache();
    y.sum().backward();
    return Tensors{y.detach(), x.grad(), linear->weight.grad(), norm->running_mean,
                   norm->num_batches_tracked};
  };
  check_same_tensors(run(false), run(true));
}

TEST_CASE("An op on very many tensors is compared like any other", "[backend][outside]") {
  const Tensor x = torch::rand({4}).requires_grad_();
  const auto fn = [](const Tensor& t) {
    return at::stack(std::vector<Tensor>(40000, t.sin())).sum(0).exp();
  };
  checkpoint()(fn)(x).sum().backward();
  const Tensor got = x.grad();
  CHECK(same_bits(got, torch::autograd::grad({fn(x).sum()}, {x})[0]));
}

TEST_CASE("Changing the shape of a tensor from outside in place raises in the forward",
          "[backend][outside]") {
  const Tensor x = torch::rand({4, 4}).requires_grad_();
  Tensor buffer = torch::rand({4, 4});
  const auto fn = [buffer](const Tensor& t) {
    Tensor same = buffer;
    same.t_();
    return (t * same).sin();
  };
  CHECK_THAT(error_text([&] { checkpoint({.name = "shape"})(fn)(x); }),
             ContainsSubstring(remat::on_default_device(
                 "[checkpoint] region 'shape', op aten::t_: expected in-place ops that "
                 "write data only, got one that changes the shape or storage of a "
                 "tensor from outside the region (float32 [4, 4] on cpu)")));
}

}  // namespace
