// SPDX-License-Identifier: BSD-3-Clause

// Functions that run slice by slice: tiled().
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <remat/remat.h>
#include <catch2/catch.hpp>

#include "support/default_device.h"

namespace {

using at::Tensor;
using Catch::Matchers::Contains;

struct Head {
  Tensor weight = torch::randn({512, 16}, torch::requires_grad());

  Tensor operator()(const Tensor& hidden, const Tensor& targets) const {
    const Tensor logits = hidden.mm(weight.t());
    return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum);
  }
};

struct HeadAndBatch {
  Head head;
  Tensor hidden;
  Tensor targets;
  std::vector<Tensor> leaves;
};

HeadAndBatch head_and_batch() {
  torch::manual_seed(0);
  const Head head;
  const Tensor hidden = torch::randn({64, 16}, torch::requires_grad());
  return {head, hidden, torch::randint(0, 512, {64}), {hidden, head.weight}};
}

/// Returns the loss that `make_loss` returns, the gradients of `leaves`, and the peak of the step.
std::pair<std::vector<Tensor>, int64_t> step(const std::function<Tensor()>& make_loss,
                                             const std::vector<Tensor>& leaves) {
  for (const Tensor& leaf : leaves) leaf.mutable_grad() = Tensor();
  const remat::MemoryMeter meter;
  Tensor loss = make_loss();
  loss.backward();
  const int64_t peak = meter.peak_bytes(remat::default_device());
  std::vector<Tensor> results{loss.detach()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return {results, peak};
}

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return x.equal(y); });
}

}  // namespace

TEST_CASE("Tiles have the bits of slices without regions, one slice in memory", "[tiled]") {
  const auto [head, hidden, targets, leaves] = head_and_batch();
  const auto by_hand = [&] {
    Tensor sum;
    for (int64_t i = 0; i < 8; ++i) {
      const Tensor part = head(hidden.narrow(0, 8 * i, 8), targets.narrow(0, 8 * i, 8));
      sum = i == 0 ? part : sum + part;
    }
    return sum;
  };
  const auto tiled = [&] {
    return remat::tiled({.dim = 0, .tiles = 8, .region = {.name = "head"}})(head)(hidden, targets);
  };
  const auto [expected, expected_peak] = step(by_hand, leaves);
  const auto [found, peak] = step(tiled, leaves);
  CHECK(same(expected, found));
  // The tiled peak is mostly two gradients of the weight: the sum so far and one tile's.
  CHECK(10 * peak < 6 * expected_peak);
}

TEST_CASE("Results of tiles are joined, scalars added, the rest passed whole", "[tiled]") {
  const Tensor x = torch::randn({5, 3}, torch::requires_grad());
  const Tensor scale = torch::randn({7});
  std::vector<int64_t> lengths;
  const auto f = [&](const Tensor& tile, const Tensor& whole, double factor) {
    lengths.push_back(tile.size(0));
    return std::map<std::string, Tensor>{{"y", tile * factor * whole.sum()}, {"n", tile.sum()}};
  };
  auto out = remat::tiled({.dim = -2, .tiles = 2})(f)(x, std::cref(scale), 2.0);
  CHECK(lengths == std::vector<int64_t>{3, 2});
  CHECK(out["y"].equal(x * 2.0 * scale.sum()));
  CHECK(out["n"].dim() == 0);
  out["y"].sum().backward();
  CHECK(x.grad().equal(torch::ones({5, 3}) * scale.sum() * 2.0));
}

TEST_CASE(
    "Tiling takes functions with state, empty and short dimensions, and results without gradients",
    "[tiled]") {
  torch::nn::Linear layer(3, 3);
  const auto f = remat::tiled({.tiles = 4})([layer](const Tensor& x) mutable { return layer(x); });
  for (const int64_t n : {0, 1, 9}) {
    const Tensor x = torch::randn({n, 3});
    const torch::NoGradGuard no_grad;
    CHECK(torch::allclose(f(x), layer(x)));  // Matrix products of other shapes round differently.
  }
}

TEST_CASE("In a step with a budget tiles are no regions", "[tiled]") {
  const auto [head, hidden, targets, leaves] = head_and_batch();
  const auto tiled = remat::tiled({.tiles = 8})(head);
  const auto plain = step([&] { return tiled(hidden, targets); }, leaves).first;
  auto planned = remat::auto_checkpoint({.name = "head", .memory_budget = "60%"})(
      [&](const Tensor& h, const Tensor& t) { return tiled(h, t); });
  for (int i = 0; i < 6; ++i)
    CHECK(same(plain, step([&] { return planned(hidden, targets); }, leaves).first));
}

TEST_CASE(
    "Arguments that cannot be tiled and results that cannot be joined raise errors that say what "
    "to do",
    "[tiled][errors]") {
  const Tensor x = torch::randn({4, 3}, torch::requires_grad());
  const auto sin = [](const Tensor& tile) { return tile.sin(); };
  CHECK_THROWS_WITH(remat::tiled({.tiles = 0}), Contains("tiles: expected 1 or more, got 0"));
  CHECK_THROWS_WITH(remat::tiled({.dim = 2, .tiles = 2})(sin)(x),
                    Contains("argument 0: expected a tensor with dimension 2, got one of 2"));
  CHECK_THROWS_WITH(
      remat::tiled({.tiles = 2})([](const Tensor& a, const Tensor& b) { return a + b; })(
          x, x.narrow(0, 0, 3)),
      Contains("argument 1: expected 4 elements along dimension 0, as argument 0 has, got 3"));
  CHECK_THROWS_WITH(remat::tiled({.tiles = 2})(sin)(std::cref(x)),
                    Contains("arguments: expected a tensor to cut, got none"));
  const auto summed = [](const Tensor& tile) { return tile.sum(0); };
  CHECK_THROWS_WITH(remat::tiled({.tiles = 2})(summed)(x),
                    Contains("result of tile 0: expected a scalar, or 2 elements"));
  const auto none_at_last = [](const Tensor& tile) {
    return tile.size(0) == 1 ? Tensor() : tile.sin();
  };
  CHECK_THROWS_WITH(
      remat::tiled({.tiles = 3})(none_at_last)(x),
      Contains("result of tile 1: expected a tensor with dimensions, as tile 0 has, got "
               "none"));
}
