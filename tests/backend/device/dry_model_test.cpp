// SPDX-License-Identifier: BSD-3-Clause

// Models, backward and optimizers on remat_meta.
#include <remat/backend/checkpoint.h>

#include "support/dry.h"

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/gpt.h"

namespace {

using at::Tensor;

using Forward = std::function<Tensor(const Tensor&)>;

/// Returns the peak of resident bytes since the process began.
int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != "VmHWM:") continue;
    int64_t kib = 0;
    status >> kib;
    return kib * 1024;
  }
  return -1;
}

/// Runs forward and backward on the CPU, then on remat_meta, and checks that outputs and gradients
/// have equal shapes.
template <class Module>
void check_same_shapes(Module module, const Forward& forward, const Tensor& input) {
  Tensor real_input = input.clone();
  if (input.is_floating_point()) real_input.requires_grad_();
  const Tensor real = forward(real_input);
  real.sum().backward();
  std::vector<std::vector<int64_t>> sizes;
  for (const Tensor& parameter : module->parameters()) {
    REQUIRE(parameter.grad().defined());
    sizes.push_back(parameter.grad().sizes().vec());
  }

  module->zero_grad();
  module->to(dry_device());
  Tensor dry_input = input.to(dry_device());
  if (input.is_floating_point()) dry_input.requires_grad_();
  const Tensor dry = forward(dry_input);
  CHECK(is_dry(dry));
  CHECK(dry.sizes() == real.sizes());
  CHECK(dry.strides() == real.strides());
  CHECK(dry.scalar_type() == real.scalar_type());
  dry.sum().backward();
  size_t i = 0;
  for (const Tensor& parameter : module->parameters()) {
    REQUIRE(is_dry(parameter));
    REQUIRE(is_dry(parameter.grad()));
    CHECK(parameter.grad().sizes() == at::IntArrayRef(sizes[i++]));
  }
  if (input.is_floating_point()) CHECK(dry_input.grad().sizes() == real_input.grad().sizes());
}

TEST_CASE("An MLP, a convolution net and recurrent nets run as on the CPU", "[device]") {
  dry_device();
  SECTION("MLP with batch norm and dropout") {
    torch::nn::Sequential net(torch::nn::Linear(6, 12), torch::nn::BatchNorm1d(12),
                              torch::nn::ReLU(), torch::nn::Dropout(0.3), torch::nn::Linear(12, 2));
    check_same_shapes(
        net, [&](const Tensor& x) { return net->forward(x); }, torch::randn({5, 6}));
  }
  SECTION("convolution, batch norm, pooling") {
    torch::nn::Sequential net(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).stride(2).padding(1)),
        torch::nn::BatchNorm2d(8), torch::nn::SiLU(),
        torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).groups(4)), torch::nn::GroupNorm(2, 8),
        torch::nn::AdaptiveAvgPool2d(2));
    check_same_shapes(
        net, [&](const Tensor& x) { return net->forward(x); }, torch::randn({2, 3, 16, 16}));
  }
  SECTION("LSTM") {
    torch::nn::LSTM net(torch::nn::LSTMOptions(5, 7).num_layers(2).bidirectional(true));
    check_same_shapes(
        net, [&](const Tensor& x) { return std::get<0>(net->forward(x)); },
        torch::randn({4, 3, 5}));
  }
  SECTION("GRU") {
    torch::nn::GRU net(torch::nn::GRUOptions(5, 7));
    check_same_shapes(
        net, [&](const Tensor& x) { return std::get<0>(net->forward(x)); },
        torch::randn({4, 3, 5}));
  }
  SECTION("transformer encoder layer") {
    torch::nn::TransformerEncoderLayer net(torch::nn::TransformerEncoderLayerOptions(8, 2));
    check_same_shapes(
        net, [&](const Tensor& x) { return net->forward(x); }, torch::randn({4, 3, 8}));
  }
  SECTION("embedding") {
    torch::nn::Embedding net(11, 4);
    check_same_shapes(
        net, [&](const Tensor& x) { return net->forward(x); }, torch::randint(11, {3, 5}));
  }
}

const GptSizes kTiny{.vocabulary = 50, .length = 8, .width = 16, .heads = 4, .layers = 2};

TEST_CASE("A GPT-2 runs dry, and checkpointed", "[device]") {
  dry_device();
  auto net = std::make_shared<Gpt>(kTiny, at::TensorOptions());
  const Tensor ids = torch::randint(50, {2, 9});
  SECTION("plain") {
    check_same_shapes(
        net, [&](const Tensor& x) { return net->loss(x); }, ids);
  }
  SECTION("in a region") {
    const auto loss = [&](const Tensor& x) {
      return remat::checkpoint()([net](const Tensor& t) { return net->loss(t); })(x);
    };
    check_same_shapes(net, loss, ids);
  }
}

TEST_CASE("Optimizers step on dry parameters", "[device]") {
  torch::nn::Linear net(4, 3);
  net->to(dry_device());
  const auto step = [&](auto&& optimizer) {
    optimizer.zero_grad();
    net->forward(torch::randn({2, 4}, dry_options())).sum().backward();
    optimizer.step();
  };
  step(torch::optim::AdamW(net->parameters()));
  step(torch::optim::Adam(net->parameters(), torch::optim::AdamOptions().amsgrad(true)));
  step(torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  step(torch::optim::RMSprop(net->parameters()));
  CHECK(is_dry(net->weight));
  CHECK(net->weight.sizes() == at::IntArrayRef({3, 4}));
}

TEST_CASE("Double backward and retained graphs run dry", "[device]") {
  const Tensor x = torch::randn({3, 3}, dry_options()).requires_grad_();
  const Tensor y = (x.sin() * x).sum();
  const Tensor grad = torch::autograd::grad({y}, {x}, {}, true, true)[0];
  grad.square().sum().backward();
  CHECK(x.grad().sizes() == x.sizes());
}

TEST_CASE("A GPT-2 of ten billion parameters takes no memory", "[device]") {
  // 50 blocks of 12 * 4096^2 weights have 10.07e9 weights, 40 GB in float32. LibTorch itself is
  // resident with some hundred MB.
  const GptSizes sizes{.width = 4096, .heads = 32, .layers = 50};
  auto net = std::make_shared<Gpt>(sizes, dry_options());
  int64_t count = 0;
  for (const Tensor& parameter : net->parameters()) count += parameter.numel();
  CHECK(count > 10'000'000'000);
  const Tensor ids = torch::zeros({8, 1025}, dry_options().dtype(at::kLong));
  torch::optim::AdamW optimizer(net->parameters());
  const Tensor loss = net->loss(ids);
  CHECK(loss.sizes() == at::IntArrayRef({}));
  loss.backward();
  optimizer.step();
  for (const Tensor& parameter : net->parameters()) {
    REQUIRE(is_dry(parameter.grad()));
    REQUIRE(parameter.grad().sizes() == parameter.sizes());
  }
  const int64_t peak = peak_resident_bytes();
  INFO("resident at most: " << peak / (1 << 20) << " MiB");
  CHECK(peak > 0);
  CHECK(peak < 1'000'000'000);
}

}  // namespace
