// SPDX-License-Identifier: BSD-3-Clause

// checkpoint(options)(fn)(args...): types of fn, arguments and results, and when fn runs.
#include <remat/remat.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "support/default_device.h"
#include "support/same_bits.h"

struct Activations {
  at::Tensor logits;
  std::vector<at::Tensor> hidden;
  int depth = 0;
};

template <>
struct remat::TensorTree<Activations> {
  template <class Self, class F>
  static void visit(Self& self, F&& f) {
    f(self.logits);
    f(self.hidden);
  }
};

namespace {

using remat::checkpoint;
using Tensor = at::Tensor;

Tensor sine(const Tensor& x) {
  return x.sin();
}

// Checks that `step` returns the same tensors if it wraps its functions with checkpoint() as if it
// wraps them with a function that returns them unchanged.
template <class Step>
void check_as_plain(const Step& step) {
  torch::manual_seed(5);
  const std::vector<Tensor> plain = step([](auto fn) { return fn; });
  torch::manual_seed(5);
  const std::vector<Tensor> ours = step([](auto fn) { return checkpoint()(std::move(fn)); });
  REQUIRE(plain.size() == ours.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(plain[i], ours[i]));
  }
}

// Runs backward and returns `y` and the gradients of `inputs`.
std::vector<Tensor> with_grads(const Tensor& y, const std::vector<Tensor>& inputs) {
  y.sum().backward();
  std::vector<Tensor> result{y};
  for (const Tensor& input : inputs) result.push_back(input.grad());
  return result;
}

Tensor leaf() {
  return torch::rand({4, 4}).requires_grad_();
}

TEST_CASE("A function runs once in the forward and once more in backward",
          "[backend][checkpoint]") {
  int runs = 0;
  const auto fn = [&runs](const Tensor& x) {
    ++runs;
    return x.sin().exp();
  };
  const Tensor y = checkpoint()(fn)(leaf());
  CHECK(runs == 1);
  y.sum().backward();
  CHECK(runs == 2);
}

TEST_CASE("Arguments that are no tensors come back as they were", "[backend][checkpoint]") {
  check_as_plain([](auto wrap) {
    const Tensor x = leaf();
    std::string mode = "exp";
    std::vector<int64_t> dims{0};
    const auto fn = [](const Tensor& t, const std::string& m, double scale,
                       const std::vector<int64_t>& d) {
      return (m == "exp" ? t.exp() : t.sin()).sum(d).mul(scale).tanh();
    };
    const Tensor y = wrap(fn)(x, mode, 0.25, dims);
    mode = "sin";  // The region has its own copy.
    dims = {1};
    return with_grads(y, {x});
  });
}

TEST_CASE("A std::ref argument is the caller's own", "[backend][checkpoint]") {
  int runs = 0;
  const auto fn = [](const Tensor& x, int& count) {
    ++count;
    return x.sin();
  };
  checkpoint()(fn)(leaf(), std::ref(runs)).sum().backward();
  CHECK(runs == 2);
}

TEST_CASE("A tensor passed by std::ref gets the gradient of plain code", "[backend][checkpoint]") {
  check_as_plain([](auto wrap) {
    const Tensor x = leaf();
    Tensor w = leaf();
    const auto fn = [](const Tensor& a, const Tensor& b) { return (a * b).exp(); };
    return with_grads(wrap(fn)(x, std::ref(w)), {x, w});
  });
}

TEST_CASE("Tensors are found in containers, at any depth, and in structs with the trait",
          "[backend][checkpoint]") {
  using Map = std::map<std::string, std::vector<Tensor>>;
  check_as_plain([](auto wrap) {
    const Tensor a = leaf(), b = leaf(), c = leaf(), d = leaf(), e = leaf();
    const auto fn = [](const Map& map, const std::pair<Tensor, int>& pair,
                       const std::tuple<Tensor, Tensor>& tuple, const std::array<Tensor, 1>& array,
                       const Activations& activations) {
      const Tensor h = map.at("h")[1] * pair.first * pair.second;
      return (h * std::get<0>(tuple).sin() * std::get<1>(tuple)).exp() * array[0] *
             activations.hidden[0].tanh();
    };
    const Tensor y = wrap(fn)(Map{{"h", {Tensor(), a}}}, std::pair(b, 2), std::tuple(c, a),
                              std::array<Tensor, 1>{d}, Activations{Tensor(), {e}, 1});
    return with_grads(y, {a, b, c, d, e});
  });
}

TEST_CASE(
    "The tensors of containers are kept by the region alone, not by its copy of the container",
    "[backend][checkpoint]") {
  // If the copy held the tensors too, 64 x 64 x 4 B could not be dropped.
  const Tensor x = torch::rand({64, 64}).requires_grad_();
  const auto inner = [](const std::vector<Tensor>& ts) { return ts[0].sin(); };
  const auto outer = [inner](const Tensor& t) {
    return checkpoint()(inner)(std::vector<Tensor>{t.exp()}).sum();
  };
  const remat::MemoryMeter meter;
  const Tensor loss = checkpoint()(outer)(x);
  CHECK(meter.current_bytes(remat::default_device()) == remat::block_bytes(4));  // The loss.
}

TEST_CASE("Undefined and absent tensors stay so", "[backend][checkpoint]") {
  check_as_plain([](auto wrap) {
    const Tensor x = leaf();
    const auto fn = [](const Tensor& t, const Tensor& bias, const std::optional<Tensor>& mask,
                       const std::optional<Tensor>& scale) {
      return (bias.defined() || mask ? t : t.sin()) * *scale;
    };
    return with_grads(
        wrap(fn)(x, Tensor(), std::optional<Tensor>(), std::optional<Tensor>(torch::ones({4}))),
        {x});
  });
}

TEST_CASE("Results keep their type", "[backend][checkpoint]") {
  const Tensor x = leaf();
  const auto tuple = checkpoint()([](const Tensor& t) {
    return std::tuple(t.sin(), std::vector<Tensor>{t, t.cos()});
  })(x);
  STATIC_REQUIRE(std::is_same_v<decltype(tuple), const std::tuple<Tensor, std::vector<Tensor>>>);
  const auto map = checkpoint()([](const Tensor& t) {
    return std::map<int, Tensor>{{7, t.exp()}};
  })(x);
  const auto optional =
      checkpoint()([](const Tensor& /*t*/) { return std::optional<Tensor>(); })(x);
  const auto array = checkpoint()([](const Tensor& t) {
    return std::array<Tensor, 2>{t.tan(), Tensor()};
  })(x);
  const auto pair = checkpoint()([](const Tensor& t) { return std::pair(t.sin(), t.detach()); })(x);
  const auto user = checkpoint()([](const Tensor& t) {
    return Activations{t.tanh(), {t.exp()}, 3};
  })(x);
  CHECK_FALSE(optional);
  CHECK_FALSE(array[1].defined());
  CHECK_FALSE(pair.second.requires_grad());
  CHECK(user.depth == 3);
  CHECK(std::get<1>(tuple)[0].is_same(x));  // An input that is returned stays the same tensor.

  const Tensor loss = (std::get<0>(tuple) + std::get<1>(tuple)[1] + map.at(7) + array[0] +
                       pair.first + user.logits + user.hidden[0])
                          .sum();
  const Tensor plain = (x.sin() + x.cos() + x.exp() + x.tan() + x.sin() + x.tanh() + x.exp()).sum();
  CHECK(torch::allclose(torch::autograd::grad({loss}, {x})[0],
                        torch::autograd::grad({plain}, {x})[0]));
}

// A function whose calls differ, since its state changes.
struct Ramp {
  Tensor operator()(const Tensor& x) {
    scale += 1;
    return (x * scale).sin();
  }
  double scale = 0;
};

TEST_CASE("A functor with state is copied at entry, so that each replay begins as its forward did",
          "[backend][checkpoint]") {
  check_as_plain([](auto wrap) {
    const Tensor x = leaf();
    auto ramp = wrap(Ramp());
    const Tensor first = ramp(x);   // scale 1
    const Tensor second = ramp(x);  // scale 2
    second.sum().backward({}, /*retain_graph=*/true);
    second.sum().backward();
    return with_grads(first, {x});
  });
}

TEST_CASE("A functor lent by std::ref is the caller's own", "[backend][checkpoint]") {
  Ramp ramp;
  checkpoint()(std::ref(ramp))(leaf());
  CHECK(ramp.scale == 1);
}

TEST_CASE("Module holders, members, function names and std::function are functions",
          "[backend][checkpoint]") {
  torch::nn::Linear linear(4, 4);
  torch::nn::Sequential sequential(torch::nn::Linear(4, 4), torch::nn::Tanh());
  const Tensor x = leaf();
  const auto check = [&](const Tensor& ours, const Tensor& plain) {
    CHECK(same_bits(ours, plain));
    CHECK(same_bits(torch::autograd::grad({ours.sum()}, {x})[0],
                    torch::autograd::grad({plain.sum()}, {x})[0]));
  };
  check(checkpoint()(linear)(x), linear(x));
  check(checkpoint()(&torch::nn::LinearImpl::forward)(linear.ptr(), x), linear(x));
  check(checkpoint()(&torch::nn::LinearImpl::forward)(std::ref(*linear), x), linear(x));
  check(checkpoint()([sequential](const Tensor& t) mutable { return sequential->forward(t); })(x),
        sequential->forward(x));
  check(checkpoint()(&sine)(x), sine(x));
  check(checkpoint()(std::function<Tensor(const Tensor&)>(sine))(x), sine(x));
}

TEST_CASE("Where nothing is recorded checkpoint just calls", "[backend][checkpoint]") {
  const Tensor x = leaf();
  const auto token = std::make_shared<int>();
  const auto fn = [token](const Tensor& t) {
    CHECK_FALSE(remat::is_recomputing());
    return t.sin();
  };
  SECTION("no grad") {
    const at::NoGradGuard no_grad;
    const Tensor y = checkpoint()(fn)(x);
    CHECK_FALSE(y.requires_grad());
    CHECK(token.use_count() == 2);
  }
  SECTION("inference") {
    const c10::InferenceMode inference;
    const Tensor y = checkpoint()(fn)(x);
    CHECK(y.is_inference());
    CHECK(token.use_count() == 2);
  }
}

TEST_CASE(
    "Early stop ends a replay at the last saved tensor; without it the function runs to its end",
    "[backend][checkpoint]") {
  for (const bool early_stop : {true, false}) {
    CAPTURE(early_stop);
    remat::CheckpointOptions options;
    options.early_stop = early_stop;
    int ends = 0;
    const auto fn = [&ends](const Tensor& x) {
      const Tensor y = x.sin();
      ++ends;
      return y + 1;
    };
    checkpoint(options)(fn)(leaf()).sum().backward();
    CHECK(ends == (early_stop ? 1 : 2));
  }
}

TEST_CASE("The stop comes before the kernel of the last op, unless the op is small",
          "[backend][checkpoint]") {
  const auto ends_of = [](int64_t size, auto op) {
    int ends = 0;
    const auto fn = [&](const Tensor& x) {
      const Tensor y = op(x);
      ++ends;
      return y;
    };
    checkpoint()(fn)(torch::randn({size, size}, torch::requires_grad())).sum().backward();
    return ends;
  };
  const auto silu = [](const Tensor& x) { return at::silu(x.sin()); };
  const auto product_in_place = [](const Tensor& x) { return x.sin().mul_(x); };
  const auto exp = [](const Tensor& x) { return x.sin().exp(); };
  const auto sigmoid_in_place = [](const Tensor& x) { return x.sin().sigmoid_(); };
  CHECK(ends_of(/*size=*/90, silu) == 2);  // 8100 elements: ops of up to 8192 are small.
  CHECK(ends_of(/*size=*/91, silu) == 1);  // 8281 elements
  CHECK(ends_of(/*size=*/91, product_in_place) == 1);
  // Backward needs the result, so the last op runs in the replay.
  CHECK(ends_of(/*size=*/91, exp) == 2);
  CHECK(ends_of(/*size=*/91, sigmoid_in_place) == 2);
}

TEST_CASE("A function that catches everything cannot swallow the stop", "[backend][checkpoint]") {
  int ends = 0;
  check_as_plain([&ends](auto wrap) {
    const Tensor x = leaf();
    const auto fn = [&ends](const Tensor& t) {
      Tensor y = t;
      for (int i = 0; i < 3; ++i) {
        try {
          y = y.exp().sin();
        } catch (...) {
          y = y.cos();  // Runs only in a replay, after the last tensor that the replay needs.
        }
      }
      y = y + 1;  // An op is left to stop at, so that the function does not return.
      ++ends;
      return y;
    };
    return with_grads(wrap(fn)(x), {x});
  });
  CHECK(ends == 2);  // In the plain run and in the forward; replays always stop earlier.
}

TEST_CASE("A function sees that it runs again", "[backend][checkpoint]") {
  std::vector<bool> seen;
  const auto inner = [&seen](const Tensor& x) {
    seen.push_back(remat::is_recomputing());
    return x.sin();
  };
  const auto outer = [&seen, inner](const Tensor& x) {
    seen.push_back(remat::is_recomputing());
    return checkpoint()(inner)(x).exp();
  };
  CHECK_FALSE(remat::is_recomputing());
  const Tensor loss = checkpoint()(outer)(leaf()).sum();
  CHECK(seen == std::vector<bool>{false, false});
  loss.backward();
  // The replay of `outer` runs both functions; the replay of `inner` runs `inner` alone.
  CHECK(seen == std::vector<bool>{false, false, true, true, true});
  CHECK_FALSE(remat::is_recomputing());
}

TEST_CASE("Chains in segments are as plain; all segments but the last run twice",
          "[backend][checkpoint]") {
  torch::nn::Sequential chain;
  for (int i = 0; i < 5; ++i) chain->push_back(torch::nn::Linear(4, 4));
  const Tensor x = leaf();
  const Tensor plain = chain->forward(x);
  const Tensor plain_grad = torch::autograd::grad({plain.sum()}, {x})[0];
  for (const int64_t segments : {1, 2, 3, 5}) {
    CAPTURE(segments);
    const Tensor y = remat::checkpoint_sequential(segments)(chain)(x);
    CHECK(same_bits(y, plain));
    CHECK(same_bits(torch::autograd::grad({y.sum()}, {x})[0], plain_grad));
  }
  // 5 layers in 2 segments: 2 in the first, which is a region, and 3 in the second, which is not.
  std::vector<int> runs(5);
  std::vector<std::function<Tensor(const Tensor&)>> layers;
  for (int& count : runs) {
    layers.emplace_back([&count](const Tensor& t) {
      ++count;
      return t.sin();
    });
  }
  remat::checkpoint_sequential(2)(layers)(x).sum().backward();
  CHECK(runs == std::vector<int>{2, 2, 1, 1, 1});
}

TEST_CASE("A region made by a replay on another thread takes no node of the forward for its own",
          "[backend][checkpoint]") {
  // Each thread numbers its own nodes. The inner region returns its argument, whose node has a
  // higher number than the first nodes of the other thread. `kept` keeps the replay's region.
  const auto gradient = [](bool plain) {
    const Tensor x = at::linspace(0, 1, 4).requires_grad_(true);
    int runs = 0;
    std::vector<Tensor> kept;
    const auto inner = [&runs](const Tensor& t) {
      ++runs;
      return std::vector<Tensor>{t, t.sin()};
    };
    const auto outer = [&](const Tensor& t) {
      const auto parts = plain ? inner(t) : checkpoint()(inner)(t);
      kept.push_back(parts[1]);
      return parts[1].exp() * parts[0];
    };
    const Tensor head = x.clone();
    const Tensor y = plain ? outer(head) : checkpoint()(outer)(head);
    std::thread([&] { y.sum().backward(); }).join();
    CHECK(runs == (plain ? 1 : 3));
    return x.grad();
  };
  CHECK(same_bits(gradient(true), gradient(false)));
}

TEST_CASE("Segments are named by their number", "[backend][checkpoint]") {
  remat::CheckpointOptions options;
  options.name = "blocks";
  const std::vector<std::function<Tensor(const Tensor&)>> layers(3, [](const Tensor& x) {
    TORCH_CHECK(!remat::is_recomputing(), "stopped");
    return x.sin();
  });
  const Tensor loss = remat::checkpoint_sequential(3, options)(layers)(leaf()).sum();
  CHECK_THROWS_WITH(
      loss.backward(),
      ContainsSubstring("[replay] region 'blocks[1]': raised when its function ran again"));
}

TEST_CASE("A saved tensor that its op fills after saving it is filled in the replay too",
          "[backend][checkpoint]") {
  const auto fn = [](const Tensor& x) {
    return torch::rrelu(x, 0.1, 0.4, /*training=*/true, std::nullopt) + 1;
  };
  for (const bool intercept : {true, false}) {
    CAPTURE(intercept);
    const auto grad = [&](const auto& region) {
      torch::manual_seed(1);
      { const std::vector<Tensor> junk(50, torch::full({40, 4}, 3.0)); }  // new memory's contents
      const Tensor x = torch::linspace(-1, 1, 160).view({40, 4}).requires_grad_();
      return torch::autograd::grad({region(x).sum()}, {x})[0];
    };
    const Tensor got = grad(checkpoint({.name = "r", .intercept = intercept})(fn));
    CHECK(same_bits(got, grad(fn)));
  }
}

}  // namespace
