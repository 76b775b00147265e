// SPDX-License-Identifier: BSD-3-Clause

// Shapes and dtypes of ops on remat_meta, compared with the CPU's.
#include "support/dry.h"

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using at::Tensor;

TEST_CASE("Ops without a Meta kernel in C++ have the shapes and dtypes of the CPU", "[device]") {
  dry_device();
  const auto image = torch::rand({2, 3, 8, 8});
  const std::vector<std::pair<const char*, std::function<std::vector<Tensor>(Tensor)>>> ops = {
      {"relu", [](Tensor x) { return std::vector{x.relu()}; }},
      {"where", [](Tensor x) { return std::vector{torch::where(x > 0, x, x.select(0, 0))}; }},
      {"var",
       [](Tensor x) {
         return std::vector{x.var(1), x.std(), x.var(at::IntArrayRef({0, 2}), true, true)};
       }},
      {"max",
       [](Tensor x) {
         return std::vector{x.max(), x.min(), x.median(), std::get<1>(x.max(1))};
       }},
      {"median",
       [](Tensor x) {
         return std::vector{std::get<0>(x.median(1)), std::get<1>(x.mode(2, true))};
       }},
      {"prod",
       [](Tensor x) {
         return std::vector{x.prod(), x.prod(1), x.nansum(2)};
       }},
      {"flip",
       [](Tensor x) {
         return std::vector{x.flip({1}), x.roll(2, 0), x.isnan(), x.angle()};
       }},
      {"fft",
       [](Tensor x) {
         return std::vector{torch::fft_rfft(x), torch::fft_fft(x),
                            torch::fft_irfft(torch::fft_rfft(x))};
       }},
      {"pool",
       [](Tensor x) {
         return std::vector{torch::adaptive_avg_pool2d(x, {2, 2}), torch::avg_pool2d(x, 2),
                            torch::max_pool2d(x, 2)};
       }},
      {"pad",
       [](Tensor x) {
         return std::vector{torch::reflection_pad2d(x, {1, 2, 3, 1}),
                            torch::constant_pad_nd(x, {1, 1})};
       }},
      {"sort",
       [](Tensor x) {
         return std::vector{std::get<0>(x.sort()), std::get<1>(x.topk(2)), x.argmax(1)};
       }},
      {"cat",
       [](Tensor x) {
         return std::vector{torch::cat({x, x}, 1), torch::stack({x, x}), x.repeat({1, 2, 1, 1})};
       }},
      {"index",
       [](Tensor x) {
         return std::vector{x.index_select(1, torch::zeros({5}, x.options().dtype(at::kLong))),
                            x.gather(0, torch::zeros({1, 1, 1, 1}, x.options().dtype(at::kLong)))};
       }},
      {"cumulative",
       [](Tensor x) {
         return std::vector{x.cumsum(1), x.cumprod(1), std::get<0>(x.cummax(1)), x.logcumsumexp(1)};
       }},
      {"norms",
       [](Tensor x) {
         return std::vector{x.norm(), torch::group_norm(x, 3),
                            torch::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false)};
       }},
      {"losses",
       [](Tensor x) {
         return std::vector{torch::huber_loss(x, x), torch::binary_cross_entropy(x, x),
                            torch::l1_loss(x, x), torch::log_sigmoid(x)};
       }},
      {"upsample",
       [](Tensor x) {
         return std::vector{torch::upsample_nearest2d(x, at::IntArrayRef({16, 16})),
                            torch::pixel_shuffle(x.repeat({1, 4, 1, 1}), 2)};
       }},
      {"linalg",
       [](Tensor x) {
         return std::vector{torch::linalg_inv(x), torch::linalg_vector_norm(x),
                            torch::bmm(x[0], x[1]), torch::einsum("abcd,abce->de", {x, x})};
       }},
      {"random",
       [](Tensor x) {
         return std::vector{torch::rand_like(x), torch::bernoulli(x),
                            torch::multinomial(x[0][0], 2), torch::dropout(x, 0.5, true)};
       }},
      {"attention",
       [](Tensor x) { return std::vector{torch::scaled_dot_product_attention(x, x, x)}; }},
      {"cdist", [](Tensor x) { return std::vector{torch::cdist(x, x.narrow(2, 0, 5))}; }},
      {"transposed conv",
       [](Tensor x) {
         return std::vector{
             torch::conv_transpose2d(x, torch::ones({3, 4, 3, 3}, x.options()), {}, 2, 1, 1),
             torch::conv1d(x[0], torch::ones({6, 8, 3}, x.options()), {}, 2, 1)};
       }},
      {"kthvalue",
       [](Tensor x) {
         return std::vector{std::get<0>(x.kthvalue(2, 1)), x.nan_to_num(), torch::logical_not(x),
                            torch::complex(x, x).abs()};
       }},
      {"out",
       [](Tensor x) {
         Tensor a = torch::empty({0}, x.options());
         torch::abs_out(a, x);
         Tensor b = torch::empty({0}, x.options());
         torch::index_select_out(b, x, 1, torch::zeros({5}, x.options().dtype(at::kLong)));
         Tensor c = torch::empty({0}, x.options());
         torch::var_out(c, x, at::IntArrayRef({1}));
         return std::vector{a, b, c};
       }},
      {"foreach",
       [](Tensor x) {
         return torch::_foreach_add({x, x.t().t()}, at::Scalar(1));
       }},
  };
  for (const auto& [name, op] : ops) {
    INFO(name);
    const Tensor base = std::string_view(name) == "foreach" ? image[0][0] : image;
    std::vector<Tensor> real;
    std::vector<Tensor> dry;
    REQUIRE_NOTHROW(real = op(base));
    REQUIRE_NOTHROW(dry = op(base.to(dry_device())));
    REQUIRE(dry.size() == real.size());
    for (size_t i = 0; i < real.size(); ++i) {
      INFO("output " << i);
      CHECK(is_dry(dry[i]));
      CHECK(dry[i].sizes() == real[i].sizes());
      CHECK(dry[i].scalar_type() == real[i].scalar_type());
    }
  }
}

TEST_CASE("Type promotion with 0-dim CPU scalars is as on the CPU", "[device]") {
  const Tensor half = torch::ones({3}, dry_options().dtype(at::kHalf));
  CHECK((half * 2.5).scalar_type() == at::kHalf);
  CHECK((half * torch::tensor(2.5)).scalar_type() == at::kHalf);
  CHECK((torch::tensor(2.5, at::kDouble) + half).scalar_type() == at::kHalf);
  CHECK(is_dry(torch::tensor(2.5) - half));
  // A C++ number has lower priority in type promotion than a 0-dim tensor of its dtype.
  const auto integers = dry_options().dtype(at::kInt);
  CHECK((torch::ones({}, dry_options().dtype(at::kHalf)) * 2.5).scalar_type() == at::kHalf);
  CHECK((torch::ones({3}, integers) * 2.5).scalar_type() == at::kFloat);
  CHECK(torch::floor_divide(torch::ones({}, dry_options().dtype(at::kHalf)), 2.5).scalar_type() ==
        at::kHalf);
  CHECK((torch::ones({3}, integers) * torch::tensor(2.5, at::kDouble)).scalar_type() ==
        at::kDouble);
}

}  // namespace
