// SPDX-License-Identifier: BSD-3-Clause

// Numbers stored in fewer bits: their errors, and the options that must allow these.
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <remat/remat.h>

#include "offload/through_store.h"
#include "support/catch.h"
#include "support/default_device.h"
#include "support/error_text.h"

namespace remat {
namespace {

struct SmallType {
  at::ScalarType dtype;
  double most_relative;  // half a unit in the last place
};

const std::vector<SmallType> kSmallTypes{{at::kBFloat16, 0x1p-8},
                                         {at::kHalf, 0x1p-11},
                                         {at::kFloat8_e4m3fn, 0x1p-4},
                                         {at::kFloat8_e5m2, 0x1p-3}};

TEST_CASE("Numbers of every size are as near as their type can be", "[offload]") {
  for (const SmallType& type : kSmallTypes) {
    CAPTURE(type.dtype);
    for (const double size : {1e-300, 1e-37, 1e-3, 1.0, 449.0, 65504.0, 1e6, 3.4e38, 1e300}) {
      CAPTURE(size);
      const auto store = rounding_store(type.dtype);
      const bool is_float = size > 1e-40 && size < 1e40;
      const at::Tensor tensor =
          at::linspace(0.5, 1, 1000, is_float ? at::kFloat : at::kDouble).mul(size);
      const at::Tensor got = through(*store, tensor);
      const at::Tensor error = got.sub(tensor).abs();
      CHECK(error.div(tensor).max().item<double>() <= type.most_relative);
      const RoundingStats stats = store->stats();
      CHECK(stats.count == 1);
      CHECK(stats.tensor_bytes == (is_float ? 4000 : 8000));
      CHECK(stats.rounded_bytes == 1000 * static_cast<int64_t>(c10::elementSize(type.dtype)));
      const at::Tensor exact_error = got.to(at::kDouble).sub(tensor.to(at::kDouble)).abs();
      CHECK(stats.max_error == exact_error.max().item<double>());
      const double norm = tensor.to(at::kDouble).div(size).norm().item<double>();
      const double relative = exact_error.div(size).norm().item<double>() / norm;
      // The sums of squares may be added in another order.
      CHECK(std::abs(stats.max_relative_error - relative) <= 1e-12 * relative);
    }
  }
}

TEST_CASE("Numbers that a type has come back as they were", "[offload]") {
  for (const SmallType& type : kSmallTypes) {
    for (const at::ScalarType wide : {at::kFloat, at::kDouble}) {
      const auto store = rounding_store(type.dtype);
      const at::Tensor powers = at::exp2(at::arange(-6, 7)).to(wide).neg();
      CHECK(at::equal(through(*store, powers), powers));
      CHECK(at::equal(through(*store, at::zeros({3, 4}, wide)), at::zeros({3, 4}, wide)));
      CHECK(store->stats().max_error == 0);
    }
  }
}

TEST_CASE("More than a piece is rounded piece by piece", "[offload]") {
  const auto store = rounding_store(at::kBFloat16);
  const at::Tensor large = at::linspace(-3, 3, (1 << 20) + 4).view({4, -1}).t();
  const at::Tensor got = through(*store, large);
  CHECK(at::equal(got, large.to(at::kBFloat16).to(at::kFloat)));
}

TEST_CASE("What is not finite stays so and hides nothing", "[offload]") {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor tensor =
      at::tensor({1.0F, infinity, -2.0F, std::nanf(""), -infinity, 0.0F, 1.1F}, default_device());
  for (const SmallType& type : kSmallTypes) {
    for (const at::ScalarType wide : {at::kHalf, at::kFloat, at::kDouble}) {
      if (c10::elementSize(wide) <= c10::elementSize(type.dtype)) continue;
      const auto store = rounding_store(type.dtype);
      const at::Tensor got = through(*store, tensor.to(wide)).to(at::kFloat);
      CHECK(at::equal(got.slice(0, 0, 3), tensor.slice(0, 0, 3)));
      CHECK(std::isnan(got[3].item<float>()));
      CHECK(at::equal(got.slice(0, 4, 6), tensor.slice(0, 4, 6)));
      // amax() does not show an infinite number beside a NaN.
      const at::Tensor others = through(*store, tensor.slice(0, 4).to(wide)).to(at::kFloat);
      CHECK(at::equal(others.slice(0, 0, 2), tensor.slice(0, 4, 6)));
      CHECK(others[2].item<float>() >= 1);
      CHECK(store->stats().max_error > 0);
      CHECK(store->stats().max_error < 0.2);
      CHECK(store->stats().max_relative_error > 0);
    }
  }
}

TEST_CASE("What is finite stays so", "[offload]") {
  const at::Tensor halves = at::arange(0x7c00, at::kShort).view(at::kHalf);  // all values >= 0
  for (const SmallType& type : kSmallTypes) {
    const at::Tensor large =
        at::tensor({std::numeric_limits<float>::max(), 1.0F, 0.0F}, default_device());
    for (const at::Tensor& tensor : {halves, halves.neg(), halves.to(at::kBFloat16), large}) {
      const at::Tensor got = through(*rounding_store(type.dtype), tensor);
      CHECK(got.isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("What is as small, no number or a part is kept as it is", "[offload]") {
  const auto store = rounding_store(at::kBFloat16);
  const at::Tensor matrix = at::rand({8, 8});
  const std::vector<at::Tensor> others{at::rand({3}).to(at::kHalf),
                                       at::rand({3}).to(at::kBFloat16),
                                       at::arange(4),
                                       at::rand({3}) < 0.5,
                                       at::empty({0}),
                                       at::rand({3}).to(at::kComplexFloat),
                                       matrix.select(0, 2),
                                       at::ones({1}).expand({4})};
  for (const at::Tensor& tensor : others) CHECK(store->put(tensor)->get().is_same(tensor));
  CHECK(store->stats().count == 0);
}

TEST_CASE("A tensor that several nodes save is rounded once, until it is written", "[offload]") {
  const auto store = rounding_store(at::kHalf);
  const at::Tensor tensor = at::rand({16});
  const auto first = store->put(tensor);
  CHECK(store->put(tensor) == first);
  CHECK(store->stats().count == 1);
  tensor.add_(1);
  const auto later = store->put(tensor);
  CHECK(later != first);
  CHECK(later->get().min().item<float>() >= 1);
  CHECK(store->put(tensor.view({4, 4})) != later);
  CHECK(store->stats().count == 3);
}

TEST_CASE("Gradients are as near as the numbers, and only for who has said so", "[offload]") {
  const at::Tensor weight = at::linspace(-1, 1, 32 * 32).view({32, 32}).div(6);
  const auto body = [&](const at::Tensor& x) { return x.mm(weight).exp().sin().mm(weight); };
  const auto gradient = [&](const auto& fn) {
    const at::Tensor x = at::linspace(-1, 1, 16 * 32).view({16, 32}).clone().requires_grad_();
    fn(x).square().sum().backward();
    return x.grad();
  };
  PolicyTable rules;
  rules.op("aten::exp", Policy::kOffload);
  const at::Tensor exact = gradient(body);
  const auto engine = offload_engine({.min_bytes = 0});
  for (const auto replay : {ReplayEngine::kFunction, ReplayEngine::kTape}) {
    for (const auto& inner : std::vector<std::shared_ptr<OffloadStore>>{nullptr, engine}) {
      const auto store = rounding_store(at::kBFloat16, inner);
      CheckpointOptions options{.name = "r", .determinism = Determinism::kNone, .replay = replay};
      options.policy = make_policy(rules);
      options.offload_store = store;
      const at::Tensor got = gradient(checkpoint(options)(body));
      CHECK(store->stats().count == 1);
      CHECK(store->stats().max_relative_error > 0);
      CHECK_FALSE(at::equal(got, exact));
      CHECK(got.sub(exact).norm().item<double>() <= 0.01 * exact.norm().item<double>());

      options.determinism = Determinism::kMetadata;
      CHECK_THAT(error_text([&] { gradient(checkpoint(options)(body)); }),
                 ContainsSubstring("region 'r': determinism: expected kNone"));
      options.offload_store = mask_store(store);
      CHECK_THAT(error_text([&] { gradient(checkpoint(options)(body)); }),
                 ContainsSubstring("gradients are approximations"));
    }
  }
}

TEST_CASE("Only small floating point types round", "[offload]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kInt, at::kBool, at::kComplexHalf})
    CHECK_THAT(error_text([&] { rounding_store(dtype); }),
               ContainsSubstring("[rounding_store] dtype: expected BFloat16, Half"));
}

}  // namespace
}  // namespace remat
