// SPDX-License-Identifier: BSD-3-Clause

// Replay from a tape: bitwise equal, with one call of the function; and what a tape refuses.
#include <torch/torch.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <remat/engine/op_log.h>
#include <remat/engine/region.h>
#include <remat/remat.h>
#include <remat/tape/tape.h>

#include "support/catch.h"
#include "support/default_device.h"
#include "support/error_text.h"
#include "support/gpt.h"
#include "support/named_step.h"

namespace remat {
namespace {

CheckpointOptions on_tape() {
  return {.name = "r", .replay = ReplayEngine::kTape};
}

/// Checks that a step from a tape is bitwise equal to a plain step, and that fn ran once.
void check_tape(const TensorFn& fn, const Tensors& weights = {},
                CheckpointOptions options = on_tape()) {
  int runs = 0;
  const TensorFn counted = [&](const at::Tensor& x) { return ++runs, fn(x); };
  torch::manual_seed(5);
  const Tensors got = step(checkpoint(options)(counted), weights);
  const at::Tensor drawn = torch::rand(3);
  CHECK(runs == 1);
  torch::manual_seed(5);
  check_same(got, step(fn, weights));
  CHECK(same_bits(drawn, torch::rand(3)));
}

at::Tensor weight(at::IntArrayRef sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return torch::linspace(-1, 1, count).view(sizes).clone().requires_grad_();
}

std::string refusal(const TensorFn& fn) {
  return error_text([&] { checkpoint(on_tape())(fn)(step_input()).sum().backward(); });
}

}  // namespace

TEST_CASE("A tape gives the bits of the plain run, and the function runs once", "[backend][tape]") {
  const at::Tensor w = weight({8, 8});
  check_tape([](const at::Tensor& x) { return x.sin().exp().tanh(); });
  check_tape([&](const at::Tensor& x) { return torch::gelu(torch::linear(x.sin(), w)); }, {w});
  check_tape([&](const at::Tensor& x) { return torch::layer_norm(x.mm(w), {8}).softmax(-1); }, {w});
  check_tape([](const at::Tensor& x) { return (2 * x + 1).pow(2) / 3 - 1e-3; });
}

TEST_CASE("Views, in-place writes and lists come from a tape", "[backend][tape]") {
  check_tape([](const at::Tensor& x) {
    const auto parts = x.sin().t().chunk(2, 0);
    return torch::cat({parts[1].exp(), parts[0].transpose(0, 1).t()}, 0).sin();
  });
  check_tape([](const at::Tensor& x) {
    at::Tensor y = x.clone();
    y.mul_(2).select(0, 1).add_(y.detach().sin()[0]);
    const at::Tensor z = y.exp();
    y.narrow(1, 2, 3).sigmoid_();
    return (y * z).tanh();
  });
  check_tape([](const at::Tensor& x) {
    at::Tensor y = x.exp() + 1;
    const at::Tensor before = y.detach().sin();
    y.add_(1);
    y.mul_(before);
    return y.sin() * before;
  });
  check_tape([](const at::Tensor& x) {
    const auto [values, index] = x.sin().topk(3, 1);
    return x.index({torch::arange(4), index.select(1, 0)}).exp().unsqueeze(1) * values;
  });
}

TEST_CASE("Random numbers come from a tape as the forward drew them", "[backend][tape]") {
  check_tape([](const at::Tensor& x) {
    const at::Tensor a = torch::dropout(x.sin(), 0.5, true);
    return torch::dropout(a.exp() * torch::rand({4, 8}), 0.3, true).tanh() + torch::randn({8});
  });
}

TEST_CASE("Tensors that the function makes of numbers are on the tape", "[backend][tape]") {
  check_tape([](const at::Tensor& x) {
    const at::Tensor mask = torch::ones({8, 8}).triu(1).to(torch::kBool);
    at::Tensor table = torch::tensor({1.0, 2.0, 3.0, 4.0}, x.device());
    table.mul_(2);
    at::Tensor zeros = torch::zeros({4, 8});
    zeros.add_(x.exp());
    at::Tensor empty = torch::empty({4, 8});
    empty.copy_(zeros);
    return (x.t().matmul(x).masked_fill(mask, -1.0).sum() * empty + table.view({4, 1})).sin();
  });
}

TEST_CASE("A tape is compared by hashes until a replay of its ops was right", "[backend][tape]") {
  const auto has_hashes = [](TensorFn fn) {
    const CheckpointOptions options{.name = "trusted", .replay = ReplayEngine::kTape};
    const at::Tensor y = checkpoint(options)(std::move(fn))(step_input());
    const bool has = region_tapes().back().tape().has_hashes();
    y.sum().backward();
    return has;
  };
  const auto sin = [](const at::Tensor& x) { return x.sin(); };
  const auto exp = [](const at::Tensor& x) { return x.exp().sin(); };
  CHECK(has_hashes(sin));
  CHECK_FALSE(has_hashes(sin));
  CHECK(has_hashes(exp));  // this function has other ops
  CHECK_FALSE(has_hashes(exp));
  CHECK_FALSE(has_hashes(sin));
}

TEST_CASE("Writes of the function to outside tensors happen once", "[backend][tape]") {
  for (const bool training : {true, false}) {
    torch::nn::BatchNorm1d norm(8), plain_norm(8);
    norm->train(training);
    plain_norm->train(training);
    int counter = 0;
    at::Tensor cache, plain_cache;
    at::Tensor total = torch::zeros({8}), plain_total = torch::zeros({8});
    const auto fn = [](torch::nn::BatchNorm1d& n, at::Tensor& kept, at::Tensor& sum, int& count,
                       const at::Tensor& x) {
      ++count;
      const at::Tensor y = n->forward(x.sin());
      sum.add_(y.detach().sum(0));
      kept = kept.defined() ? torch::cat({kept, y.detach()}) : y.detach();
      return y.exp() * sum * kept.sum();
    };
    const Tensors got = step(checkpoint(on_tape())(
        [&](const at::Tensor& x) { return fn(norm, cache, total, counter, x); }));
    CHECK(counter == 1);
    int ignored = 0;
    check_same(got, step([&](const at::Tensor& x) {
                 return fn(plain_norm, plain_cache, plain_total, ignored, x);
               }));
    CHECK(same_bits(norm->running_mean, plain_norm->running_mean));
    CHECK(same_bits(norm->num_batches_tracked, plain_norm->num_batches_tracked));
    CHECK(same_bits(cache, plain_cache));
    CHECK(same_bits(total, plain_total));
  }
}

TEST_CASE("Branches on data need not come out the same again", "[backend][tape]") {
  int calls = 0;
  const TensorFn fn = [&](const at::Tensor& x) {
    return ++calls % 2 == 1 ? x.sin().exp() : x.cos().tanh().sin();
  };
  const at::Tensor x = step_input();
  checkpoint(on_tape())(fn)(x).sum().backward();
  const at::Tensor y = step_input();
  y.sin().exp().sum().backward();
  CHECK(same_bits(x.grad(), y.grad()));
}

TEST_CASE("SAVE calls and rules work on a tape", "[backend][tape]") {
  const at::Tensor w = weight({8, 8});
  const TensorFn fn = [&](const at::Tensor& x) {
    const auto mm = [&](const at::Tensor& t) { return t.sin().mm(w).exp(); };
    const at::Tensor a = save("a", mm)(x.cos());
    at::Tensor b = save("b", mm)(a.sin()) + 1;
    b.mul_(recompute("c", mm)(a));
    return save("d", [](at::Tensor t) { return t.mul_(2); })(b.clone()).sin();
  };
  check_tape(fn, {w});
  for (const char* name : {"save_matmuls", "recompute_pointwise"}) {
    CheckpointOptions options = on_tape();
    options.policy = make_policy(preset(name));
    check_tape(fn, {w}, options);
  }
}

TEST_CASE("A SAVE call on a tape keeps what it keeps without", "[backend][tape]") {
  const at::Tensor w = torch::rand({64, 64}).requires_grad_();
  const auto bytes = [&](ReplayEngine engine) {
    const CheckpointOptions options{.replay = engine, .policy = make_policy(save_matmuls())};
    const at::Tensor x = torch::rand({64, 64}).requires_grad_();
    const auto fn = [&](const at::Tensor& t) { return t.sin().mm(w).tanh().exp().mm(w).sum(); };
    const MemoryMeter meter;
    const at::Tensor y = checkpoint(options)(fn)(x);
    return meter.current_bytes(default_device());
  };
  CHECK(bytes(ReplayEngine::kTape) == bytes(ReplayEngine::kFunction));
}

TEST_CASE("Ops that look at shapes only need no values", "[backend][tape]") {
  check_tape([](const at::Tensor& x) {
    const at::Tensor kept = save("a", exp_of)(x.sin());
    return x.cos() * torch::rand_like(kept) * torch::full_like(kept.t(), 3).t();
  });
}

TEST_CASE("Tapes nest, in regions of either kind", "[backend][tape]") {
  const at::Tensor w = weight({8, 8});
  const at::Tensor outside = torch::rand({4, 8});
  const auto inner = [&](const at::Tensor& x) { return (x.sin().mm(w) * outside).tanh().exp(); };
  const TensorFn plain = [&](const at::Tensor& x) {
    const at::Tensor shared = x.exp();
    const auto region = [&](const at::Tensor& t) { return inner(t).sin() * shared; };
    return region(region(x.cos())).sin();
  };
  for (const ReplayEngine in : {ReplayEngine::kTape, ReplayEngine::kFunction}) {
    for (const ReplayEngine out : {ReplayEngine::kTape, ReplayEngine::kFunction}) {
      const TensorFn nested = [&](const at::Tensor& x) {
        const at::Tensor shared = x.exp();
        const auto region = checkpoint({.name = "in", .replay = in})(
            [&inner, shared](const at::Tensor& t) { return inner(t).sin() * shared; });
        return region(region(x.cos())).sin();
      };
      const Tensors got = step(checkpoint({.name = "out", .replay = out})(nested), {w});
      check_same(got, step(plain, {w}));
    }
  }
}

TEST_CASE("Regions with kAuto get tapes where the region around has one", "[backend][tape]") {
  // The last of the three inner regions begins after the outer region has given up its tape.
  const auto fn = [](const CheckpointOptions& inner, bool resizes, size_t* tapes) -> TensorFn {
    return [=](const at::Tensor& x) {
      const auto region = [&](const at::Tensor& t) {
        return checkpoint(inner)([](const at::Tensor& s) { return s.sin().exp(); })(t);
      };
      at::Tensor y = region(region(x).tanh());
      if (resizes) y = y * x.detach().clone().resize_({2}).sum();
      y = region(y);
      if (tapes) *tapes = region_tapes().size();
      return y.cos();
    };
  };
  const auto tapes_of = [&](const CheckpointOptions& outer, bool resizes) {
    const CheckpointOptions inner{.name = "in", .replay = ReplayEngine::kAuto};
    size_t tapes = 0;
    const at::Tensor x = step_input();
    const at::Tensor y = checkpoint(outer)(fn(inner, resizes, &tapes))(x);
    const size_t in_forward = tapes;
    y.sum().backward();
    const at::Tensor expected = step_input();
    fn({.name = "plain"}, resizes, nullptr)(expected).sum().backward();
    CHECK(same_bits(x.grad(), expected.grad()));
    return in_forward;
  };
  CHECK(tapes_of({.name = "nested auto, of functions"}, false) == 0);
  CHECK(tapes_of({.name = "nested auto", .replay = ReplayEngine::kAuto}, false) == 3);
  CHECK(tapes_of({.name = "nested auto, given up", .replay = ReplayEngine::kAuto}, true) == 2);
  CHECK(tapes_of({.name = "nested auto, given up", .replay = ReplayEngine::kAuto}, true) ==
        0);  // no tape is tried again
}

TEST_CASE("An inner tape holds nothing that the outer region makes again", "[backend][tape]") {
  constexpr int64_t kBytes = 64 * 64 * 4;
  const at::Tensor x = torch::rand({64, 64}).requires_grad_();
  const MemoryMeter meter;
  const at::Tensor y = checkpoint(on_tape())([](const at::Tensor& t) {
    const at::Tensor shared = t.sin();
    const auto inner = [shared](const at::Tensor& s) { return (s.exp() * shared).tanh().sum(); };
    return checkpoint({.name = "in", .replay = ReplayEngine::kTape})(inner)(t.cos());
  })(x);
  CHECK(meter.current_bytes(default_device()) < kBytes);
}

TEST_CASE("Retained graphs, partial gradients and double backward work on a tape",
          "[backend][tape]") {
  const auto run = [](bool taped) {
    const TensorFn fn = [](const at::Tensor& x) { return (x.sin() * x.exp()).tanh(); };
    const at::Tensor x = step_input();
    const at::Tensor y = taped ? checkpoint(on_tape())(fn)(x) : fn(x);
    Tensors all;
    for (int i = 0; i < 3; ++i)
      all.push_back(torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0]);
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    all.push_back(torch::autograd::grad({first.sum()}, {x})[0]);
    return all;
  };
  check_same(run(true), run(false));
}

TEST_CASE("Autograd's error for a tensor written after it was saved stays", "[backend][tape]") {
  CHECK_THAT(refusal([](const at::Tensor& x) {
               at::Tensor y = x.exp();
               const at::Tensor z = y.sin();
               y.mul_(2);
               return z;
             }),
             ContainsSubstring("modified by an inplace operation"));
  at::Tensor outside = torch::rand({4, 8});
  const at::Tensor y = checkpoint(on_tape())(
      [&](const at::Tensor& x) { return (x.sin() + outside).sin(); })(step_input());
  outside.add_(1);
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring("region 'r'") && ContainsSubstring("inplace"));
}

TEST_CASE(
    "What a region inside was given and is written before backward raises, on a trusted tape too",
    "[backend][tape]") {
  const at::Tensor w = weight({8, 8});
  const auto error_of_write = [&](bool writes) {
    const at::Tensor given = torch::ones({4, 8});
    const at::Tensor y = checkpoint({.name = "given", .replay = ReplayEngine::kTape})(
        [&w, given](const at::Tensor& x) {
          const auto add = [](const at::Tensor& a, const at::Tensor& b) { return a + b; };
          return checkpoint({.name = "in"})(add)(given, x).mm(w);
        })(step_input());
    if (writes) given.add_(1);
    return error_text([&] { y.sum().backward(); });
  };
  for (int step = 0; step < 2; ++step) {
    CHECK_THAT(error_of_write(true), ContainsSubstring("modified by an inplace operation") &&
                                         ContainsSubstring("[replay] region 'given'"));
    CHECK(error_of_write(false) == "no error");
  }
}

TEST_CASE("A function that a tape cannot replay raises in the forward, or falls back",
          "[backend][tape]") {
  struct Case {
    const char* name;
    TensorFn fn;
    const char* text;
    bool is_of_cpu = false;  ///< writes or computes what only the CPU can
  };
  const std::vector<Case> cases = {
      {"sparse", [](const at::Tensor& x) { return x.sin().to_sparse().to_dense().exp(); },
       "not strided", /*is_of_cpu=*/true},
      {"backward inside",
       [](const at::Tensor& x) {
         const at::Tensor y = x.sin();
         return y.exp() * torch::autograd::grad({y.sum()}, {x}, {}, true)[0].detach();
       },
       "a backward in the function"},
      {"memory written by hand",
       [](const at::Tensor& x) {
         const at::Tensor y = torch::empty({4, 8 * 64});
         for (int64_t i = 0; i < y.numel(); ++i)
           y.mutable_data_ptr<float>()[i] = static_cast<float>(i);
         return x.sin() * y.narrow(1, 0, 8);
       },
       "more than 4,096 bytes that no op wrote", /*is_of_cpu=*/true},
      {"parts of memory by hand",
       [](const at::Tensor& x) {
         at::Tensor y = torch::empty({4, 8 * 64 * 1024});
         std::fill_n(y.mutable_data_ptr<float>(), y.numel(), 0.5F);
         y.index_fill_(0, torch::tensor({1, 3}), 2);
         return x.sin() * y.narrow(1, 0, 8);
       },
       "more than 4 MiB that no op wrote, after empty(), of which it writes parts",
       /*is_of_cpu=*/true},
      {"resize",
       [](const at::Tensor& x) {
         at::Tensor y = torch::zeros({2});
         y.resize_({4, 8}).zero_();
         return (x.sin() + y).exp();
       },
       "changes its size"},
  };
  for (const Case& test : cases) {
    INFO(test.name);
    if (default_device().is_cuda() && test.is_of_cpu) continue;
    CHECK_THAT(refusal(test.fn), ContainsSubstring("[checkpoint] region 'r': expected what a tape "
                                                   "can replay, got") &&
                                     ContainsSubstring(test.text) && ContainsSubstring("kAuto"));
    check_as_plain(test.fn, {}, {.name = "auto", .replay = ReplayEngine::kAuto});
  }
}

// [cpu]: the host writes the memory.
TEST_CASE("A tape holds a few bytes that no op wrote", "[backend][tape][cpu]") {
  const TensorFn fn = [](const at::Tensor& x) {
    at::Tensor factors = torch::empty({8});
    for (int64_t i = 0; i < 8; ++i) factors.mutable_data_ptr<float>()[i] = static_cast<float>(i);
    const at::Tensor sum = x.sin() + factors;
    factors.mul_(3);
    const at::Tensor row = torch::empty({2}, torch::kLong);  // as Python's x[[1, 3]] makes it
    row.mutable_data_ptr<int64_t>()[0] = 1;
    row.mutable_data_ptr<int64_t>()[1] = 3;
    return (sum * factors).index({row}).exp();
  };
  check_as_plain(fn, {}, {.name = "r", .replay = ReplayEngine::kTape});
}

// [cpu]: the host writes the memory.
TEST_CASE("A tape holds memory of which the first op writes parts", "[backend][tape][cpu]") {
  const TensorFn fn = [](const at::Tensor& x) {
    at::Tensor factors = torch::empty({2000});  // as Python's torch.tensor makes it
    std::fill_n(factors.mutable_data_ptr<float>(), 2000, 0.5F);
    factors.index_fill_(0, torch::arange(3, 1000), 2);
    const at::Tensor order = torch::randperm(2000);
    at::Tensor inverse = torch::empty_like(order);  // as sorting by expert does
    inverse.index_put_({order}, torch::arange(2000));
    const at::Tensor wide = x.sin().flatten().repeat({63}).narrow(0, 0, 2000);
    return (wide * factors).index({order}).exp().index({inverse}).sum().expand({4, 8}) * x;
  };
  for (const Cuts& cuts : {Cuts{}, Cuts{.positions = {4}}, Cuts{.positions = {2, 5, 8}}}) {
    torch::manual_seed(3);
    const Tensors got =
        step(checkpoint({.name = "parts", .replay = ReplayEngine::kTape, .cuts = cuts})(fn), {});
    torch::manual_seed(3);
    check_same(got, step(fn, {}));
  }
}

// [cpu]: the host writes the memory.
TEST_CASE("A tape holds bytes that the host wrote and the first op writes in place",
          "[backend][tape][cpu]") {
  const TensorFn fn = [](const at::Tensor& x) {
    at::Tensor factors = torch::empty({8});  // as Python's torch.tensor makes it
    for (int64_t i = 0; i < 8; ++i) factors.mutable_data_ptr<float>()[i] = static_cast<float>(i);
    factors.mul_(2);
    const at::Tensor noise = torch::empty({64, 64}).normal_();  // no value before normal_()
    return (x.sin() * factors).exp() + noise.sum();
  };
  for (int trusted = 0; trusted < 2; ++trusted) {
    torch::manual_seed(3);
    const Tensors got = step(checkpoint({.name = "host", .replay = ReplayEngine::kTape})(fn), {});
    torch::manual_seed(3);
    check_same(got, step(fn, {}));
  }
}

TEST_CASE("An op that throws and is caught does not confuse a tape", "[backend][tape]") {
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    try {
      y.mm(y);
    } catch (const c10::Error&) {
    }
    return y.exp();
  };
  check_as_plain(fn, {}, {.name = "auto", .replay = ReplayEngine::kAuto});
}

TEST_CASE("A tape without interception is refused", "[backend][tape]") {
  CHECK_THAT(error_text([] {
               checkpoint({.name = "r", .intercept = false, .replay = ReplayEngine::kTape});
             }),
             ContainsSubstring("replay: expected intercept = true"));
}

TEST_CASE("Nothing is left of a tape after backward or when its graph is dropped",
          "[backend][tape]") {
  const MemoryMeter meter;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = step_input();
    const at::Tensor y = checkpoint(on_tape())(exp_of)(x.sin());
    if (i > 0) y.sum().backward();
  }
  CHECK(meter.current_bytes(default_device()) == 0);
  CHECK(live_regions().empty());
}

TEST_CASE("A GPT-2 from tapes is bitwise the plain one", "[backend][tape]") {
  const GptSizes sizes{.vocabulary = 50, .length = 16, .width = 32, .heads = 4, .layers = 2};
  const auto run = [&](bool taped) {
    torch::manual_seed(1);
    Gpt model(sizes, at::kFloat);
    const at::Tensor ids = torch::randint(0, 50, {2, 17});
    const auto loss = [&](const at::Tensor& t) { return model.loss(t); };
    (taped ? checkpoint(on_tape())(loss)(ids) : loss(ids)).backward();
    Tensors grads;
    for (const at::Tensor& parameter : model.parameters()) grads.push_back(parameter.grad());
    return grads;
  };
  check_same(run(true), run(false));
}

TEST_CASE("Hooks that copy keep all of an outside tensor that is read in parts first",
          "[backend][tape]") {
  const at::Tensor buffer = torch::linspace(0, 1, 32).view({4, 8});
  const TensorFn fn = [&](const at::Tensor& x) {
    return (buffer[0] * x).sum() + (buffer * x).exp().sum() + (buffer.narrow(0, 2, 2) * x[1]).sum();
  };
  const auto copying = [&](const at::Tensor& x) {
    const SavedTensorsHooksGuard guard(
        {.pack = [](const at::Tensor& t) -> std::any { return t.clone(); },
         .unpack = [](const std::any& t) { return std::any_cast<at::Tensor>(t); }});
    return checkpoint(on_tape())(fn)(x);
  };
  check_same(step(copying), step(fn));
}

TEST_CASE("A tensor that a SAVE call wrote may be an argument of a nested region",
          "[backend][tape]") {
  for (const ReplayEngine engine : {ReplayEngine::kFunction, ReplayEngine::kTape}) {
    const auto run = [&](bool plain) {
      const at::Tensor state = torch::ones({4, 8});
      const TensorFn fn = [&](const at::Tensor& x) {
        const auto reset = [&] { state.mul_(0.5); };
        const auto inner = [](const at::Tensor& a, const at::Tensor& b) { return (a * b).sin(); };
        save("reset", reset)();
        return plain ? inner(x, state)
                     : checkpoint({.name = "inner", .replay = engine})(inner)(x, state);
      };
      return step(plain ? fn : TensorFn(checkpoint({.name = "outer", .replay = engine})(fn)));
    };
    check_same(run(false), run(true));
  }
}

TEST_CASE("Hooks that copy bring back arguments that are parts of a storage", "[backend][tape]") {
  const at::Tensor w = weight({8, 8});
  const auto stepped = [&](const CheckpointOptions* options) {
    const at::Tensor base = torch::linspace(-1, 1, 64).view({8, 8});
    const TensorFn fn = [&](const at::Tensor& x) {
      const auto inner = [&](const at::Tensor& rows, const at::Tensor& turned) {
        return rows.sin().mm(w) * turned.exp() + base.sum();
      };
      const at::Tensor turned = x.sin().t().contiguous().t();
      const at::Tensor rows = torch::cat({x, x}).narrow(0, 2, 4);
      if (!options) return inner(rows, turned);
      return checkpoint(*options)(inner)(rows, turned) +
             checkpoint(*options)(inner)(base.narrow(0, 1, 4), turned);
    };
    if (options) return step(fn, {w});
    const TensorFn plain = [&](const at::Tensor& x) {
      const at::Tensor turned = x.sin().t().contiguous().t();
      const auto inner = [&](const at::Tensor& rows) {
        return rows.sin().mm(w) * turned.exp() + base.sum();
      };
      return inner(torch::cat({x, x}).narrow(0, 2, 4)) + inner(base.narrow(0, 1, 4));
    };
    return step(plain, {w});
  };
  CheckpointOptions options = on_tape();
  for (const bool contiguous : {false, true}) {
    options.saved_tensors_hooks =
        SavedTensorsHooks{.pack = [contiguous](const at::Tensor& t) -> std::any {
                            return contiguous ? t.clone(at::MemoryFormat::Contiguous) : t.clone();
                          },
                          .unpack = [](const std::any& t) { return std::any_cast<at::Tensor>(t); }};
    check_same(stepped(&options), stepped(nullptr));
  }
}

TEST_CASE("Inference tensors are arguments of a tape", "[backend][tape]") {
  const auto factor = [] {
    const c10::InferenceMode inference;
    return torch::linspace(-1, 1, 32).view({4, 8});
  }();
  const auto fn = [](const at::Tensor& x, const at::Tensor& y) { return (x.sin() + y).exp(); };
  check_same(step([&](const at::Tensor& x) { return checkpoint(on_tape())(fn)(x, factor); }),
             step([&](const at::Tensor& x) { return fn(x, factor); }));
}

// Regression: freed memory was used. See Note [Results that are arguments] in tape_run.cpp.
TEST_CASE("Ops that write several outside tensors come from a tape", "[backend][tape]") {
  const at::Tensor lu = torch::linspace(-1, 1, 75).view({3, 5, 5});
  const at::Tensor pivots = torch::ones({3, 5}, at::kInt);
  for (int round = 0; round < 50; ++round) {
    const auto stepped = [&](bool plain) {
      std::array<at::Tensor, 3> out;
      for (at::Tensor& one : out) one = torch::zeros({3, 5, 5});
      const TensorFn fn = [&](const at::Tensor& x) {
        torch::lu_unpack_out(out[0], out[1], out[2], lu, pivots);
        return x.sin() * out[0].sum() * out[1].sum() * out[2].sum();
      };
      return step(plain ? fn : TensorFn(checkpoint(on_tape())(fn)));
    };
    check_same(stepped(false), stepped(true));
  }
}

// See Note [Kept logs].
TEST_CASE("The log of a region is dropped when its tape stands, and kept when it is given up",
          "[backend][tape]") {
  const bool gives_up = GENERATE(false, true);
  const at::Tensor x = torch::rand({3, 4}).requires_grad_();
  const at::Tensor y = checkpoint({.name = gives_up ? "log, kept" : "log, dropped",
                                   .replay = ReplayEngine::kAuto})([&](const at::Tensor& t) {
    const at::Tensor s = t.sin().exp();
    return gives_up ? s * torch::autograd::grad({s.sum()}, {t}, {}, true)[0] : s;
  })(x);
  const remat::OpLog& log = remat::live_regions().back()->ops();
  CHECK(log.broken_off() == !gives_up);
  CHECK((log.end() == 0) == !gives_up);
}

}  // namespace remat
