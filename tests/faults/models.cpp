// SPDX-License-Identifier: BSD-3-Clause

// Models of a few hundred ops per step.
#include "faults/models.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <utility>

#include <remat/remat.h>

namespace remat::faults {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kBatch = 2;
constexpr int64_t kTime = 3;
constexpr int64_t kWidth = 4;
constexpr int64_t kHeads = 2;
constexpr int64_t kVocabulary = 7;
constexpr int64_t kExperts = 2;

/// Makes a model that draws from the CPU's default generator.
template <class M, class Loss>
Model model_of(const std::shared_ptr<M>& module, Loss loss) {
  return {module->parameters(),
          module->buffers(),
          {at::detail::getDefaultCPUGenerator()},
          std::move(loss)};
}

template <class M>
std::shared_ptr<M> seeded() {
  torch::manual_seed(3);
  return std::make_shared<M>();
}

class Gpt2Block : public nn::Module {
 public:
  Gpt2Block()
      : norm1_(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        qkv_(register_module("qkv", nn::Linear(kWidth, 3 * kWidth))),
        out_(register_module("out", nn::Linear(kWidth, kWidth))),
        norm2_(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        up_(register_module("up", nn::Linear(kWidth, 2 * kWidth))),
        down_(register_module("down", nn::Linear(2 * kWidth, kWidth))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor mid = x + torch::dropout(attention(norm1_(x)), 0.1, /*train=*/true);
    const auto up = [this](const at::Tensor& t) { return up_(t); };
    const at::Tensor hidden = torch::gelu(native_op(up, "up", Policy::kSave)(norm2_(mid)));
    return mid + torch::dropout(down_(hidden), 0.1, /*train=*/true);
  }

 private:
  at::Tensor attention(const at::Tensor& x) {
    const auto heads = [](const at::Tensor& t) {
      return t.view({kBatch, kTime, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const Tensors qkv = qkv_(x).chunk(3, -1);
    const at::Tensor scores = heads(qkv[0]).matmul(heads(qkv[1]).transpose(-2, -1));
    const at::Tensor mask = torch::ones({kTime, kTime}, at::kBool).triu(1);
    const at::Tensor weights = scores.masked_fill(mask, -1e9).softmax(-1);
    const at::Tensor mixed = weights.matmul(heads(qkv[2])).transpose(1, 2);
    return out_(mixed.reshape({kBatch, kTime, kWidth}));
  }

  nn::LayerNorm norm1_;
  nn::Linear qkv_, out_;
  nn::LayerNorm norm2_;
  nn::Linear up_, down_;
};

struct Gpt2 : nn::Module {
  nn::Embedding tokens{register_module("tokens", nn::Embedding(kVocabulary, kWidth))};
  at::Tensor places{register_parameter("places", torch::randn({kTime, kWidth}))};
  std::shared_ptr<Gpt2Block> first{register_module("first", std::make_shared<Gpt2Block>())};
  std::shared_ptr<Gpt2Block> second{register_module("second", std::make_shared<Gpt2Block>())};
};

/// A residual block without pre-activation, as in the first ResNets.
class ResidualBlock : public nn::Module {
 public:
  explicit ResidualBlock(Policy policy)
      : policy_(policy),
        conv1_(register_module("conv1", convolution())),
        norm1_(register_module("norm1", nn::BatchNorm2d(kWidth))),
        conv2_(register_module("conv2", convolution())),
        norm2_(register_module("norm2", nn::BatchNorm2d(kWidth))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto first = [this](const at::Tensor& t) { return norm1_(conv1_(t)); };
    const at::Tensor h = native_op(first, "first", policy_)(x).relu();
    return (x + norm2_(conv2_(h))).relu_();
  }

 private:
  static nn::Conv2d convolution() {
    return nn::Conv2d(nn::Conv2dOptions(kWidth, kWidth, 3).padding(1).bias(false));
  }

  Policy policy_;
  nn::Conv2d conv1_;
  nn::BatchNorm2d norm1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d norm2_;
};

struct ResNet : nn::Module {
  nn::Conv2d stem{register_module("stem", nn::Conv2d(nn::Conv2dOptions(3, kWidth, 3)))};
  std::shared_ptr<ResidualBlock> first{
      register_module("first", std::make_shared<ResidualBlock>(Policy::kRecompute))};
  std::shared_ptr<ResidualBlock> second{
      register_module("second", std::make_shared<ResidualBlock>(Policy::kSave))};
  nn::Linear head{register_module("head", nn::Linear(kWidth, kWidth))};
};

struct Lstm : nn::Module {
  nn::LSTM encoder{register_module(
      "encoder", nn::LSTM(nn::LSTMOptions(kWidth, kWidth).num_layers(2).dropout(0.2)))};
  nn::LSTMCell decoder{register_module("decoder", nn::LSTMCell(kWidth, kWidth))};

  at::Tensor decode(const at::Tensor& x) {
    at::Tensor h = torch::zeros({kBatch, kWidth});
    at::Tensor c = torch::zeros({kBatch, kWidth});
    Tensors outputs;
    for (const at::Tensor& in : x.unbind(0)) {
      std::tie(h, c) = decoder->forward(in, std::make_tuple(h, c));
      outputs.push_back(h);
    }
    return torch::stack(outputs);
  }
};

/// Routes each token to the best of its experts.
struct MoeBlock : nn::Module {
  nn::Linear gate{register_module("gate", nn::Linear(kWidth, kExperts))};
  nn::ModuleList experts{register_module("experts", nn::ModuleList())};

  MoeBlock() {
    for (int64_t i = 0; i < kExperts; ++i) experts->push_back(nn::Linear(kWidth, kWidth));
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto gated = [this](const at::Tensor& t) { return gate(t).softmax(-1); };
    const auto [weights, choice] = native_op(gated, "gate", Policy::kOffload)(x).topk(1, -1);
    at::Tensor mixed = torch::zeros_like(x);
    for (int64_t i = 0; i < kExperts; ++i) {
      const at::Tensor rows = choice.select(1, 0).eq(i).nonzero().select(1, 0);
      const at::Tensor output = experts[i]->as<nn::Linear>()->forward(x.index_select(0, rows));
      mixed = mixed.index_add(0, rows, output.relu() * weights.index_select(0, rows));
    }
    return x + torch::dropout(mixed, 0.1, /*train=*/true);
  }
};

struct Moe : nn::Module {
  std::shared_ptr<MoeBlock> first{register_module("first", std::make_shared<MoeBlock>())};
  std::shared_ptr<MoeBlock> second{register_module("second", std::make_shared<MoeBlock>())};
};

struct Nested : nn::Module {
  nn::Linear outer{register_module("outer", nn::Linear(kWidth, kWidth))};
  nn::Linear middle{register_module("middle", nn::Linear(kWidth, kWidth))};
  nn::Linear inner{register_module("inner", nn::Linear(kWidth, kWidth))};
  at::Tensor calls{register_buffer("calls", torch::zeros({1}))};
};

struct Mlp : nn::Module {
  nn::Linear up{register_module("up", nn::Linear(kWidth, 2 * kWidth))};
  nn::Linear down{register_module("down", nn::Linear(2 * kWidth, kWidth))};
};

}  // namespace

Model make_gpt2() {
  const auto net = seeded<Gpt2>();
  const at::Tensor ids = torch::randint(kVocabulary, {kBatch, kTime + 1});
  const auto policy = make_policy(save_matmuls());
  return model_of(net, [=](const Regions& regions) {
    at::Tensor x = net->tokens(ids.narrow(1, 0, kTime)) + net->places;
    const auto block = [](const std::shared_ptr<Gpt2Block>& module) {
      return [module](const at::Tensor& t) { return module->forward(t); };
    };
    x = regions.run({.name = "gpt2.first", .policy = policy}, block(net->first), x);
    x = regions.run({.name = "gpt2.second"}, block(net->second), x);
    const at::Tensor logits = torch::linear(x, net->tokens->weight);
    return F::cross_entropy(logits.flatten(0, 1), ids.narrow(1, 1, kTime).reshape({-1}));
  });
}

Model make_resnet() {
  const auto net = seeded<ResNet>();
  const at::Tensor images = torch::randn({kBatch, 3, 6, 6});
  return model_of(net, [=](const Regions& regions) {
    at::Tensor x = net->stem(images);
    const auto block = [](const std::shared_ptr<ResidualBlock>& module) {
      return [module](const at::Tensor& t) { return module->forward(t); };
    };
    x = regions.run({.name = "resnet.first"}, block(net->first), x);
    x = regions.run({.name = "resnet.second"}, block(net->second), x);
    return net->head(x.mean(at::IntArrayRef{2, 3})).square().sum();
  });
}

Model make_lstm() {
  const auto net = seeded<Lstm>();
  const at::Tensor input = torch::randn({kTime, kBatch, kWidth});
  return model_of(net, [=](const Regions& regions) {
    const at::Tensor x = regions.run(
        {.name = "lstm.encoder"},
        [net](const at::Tensor& t) { return std::get<0>(net->encoder->forward(t)); }, input);
    const auto decode = [net](const at::Tensor& t) { return net->decode(t); };
    return regions.run({.name = "lstm.decoder"}, decode, x).square().sum();
  });
}

Model make_moe() {
  const auto net = seeded<Moe>();
  const at::Tensor tokens = torch::randn({2 * kBatch, kWidth});
  return model_of(net, [=](const Regions& regions) {
    at::Tensor x = tokens;
    for (const auto& [name, block] :
         {std::pair("moe.first", net->first), {"moe.second", net->second}})
      x = regions.run(
          {.name = name, .offload_store = host_memory_store()},
          [block = block](const at::Tensor& t) { return block->forward(t); }, x);
    return x.square().sum();
  });
}

Model make_nested() {
  const auto net = seeded<Nested>();
  const at::Tensor input = torch::randn({kBatch, kWidth});
  return model_of(net, [=](const Regions& regions) {
    const auto inner = [net](const at::Tensor& t) {
      net->calls.add_(1);
      return torch::dropout(net->inner(t).tanh(), 0.2, /*train=*/true) * net->calls;
    };
    const auto middle = [=](const at::Tensor& t) {
      const at::Tensor h = net->middle(t).sin();
      const CheckpointOptions taped{.name = "nested.inner", .replay = ReplayEngine::kTape};
      return regions.run(taped, inner, h).exp() * h.sigmoid();
    };
    const auto outer = [=](const at::Tensor& t) {
      const at::Tensor h = net->outer(t).cos();
      CheckpointOptions cut{.name = "nested.middle", .replay = ReplayEngine::kTape};
      cut.cuts.positions = {2, 4, 6};
      cut.cuts.groups = {{1, 3}};
      const auto square = [](const at::Tensor& y) { return y.square(); };
      return native_op(square, "square", Policy::kSave)(regions.run(cut, middle, h).tanh()) + h;
    };
    return regions.run({.name = "nested.outer"}, outer, input).square().sum();
  });
}

Model make_mlp() {
  const auto net = seeded<Mlp>();
  const at::Tensor input = torch::randn({kBatch, kWidth});
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto loss = [=](const Regions& regions) {
    const auto body = [net, generator](const at::Tensor& t) {
      const at::Tensor h = net->up(t).relu();
      const at::Tensor mask = torch::empty_like(h).bernoulli_(0.8, generator);
      const auto down = [net](const at::Tensor& y) { return net->down(y); };
      return t + native_op(down, "down", Policy::kSave)(h * mask).sin();
    };
    at::Tensor x = input;
    for (const char* name : {"mlp.0", "mlp.1"})
      x = regions.run({.name = name, .generators = {generator}}, body, x);
    return x.square().sum();
  };
  return {net->parameters(), net->buffers(), {generator}, loss};
}

}  // namespace remat::faults
