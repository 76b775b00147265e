// SPDX-License-Identifier: BSD-3-Clause

// Small models, one for each way in which a block can be hard to replay.
#include "matrix/models.h"

#include <torch/torch.h>

#include <utility>

namespace remat::matrix {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kBatch = 2;
constexpr int64_t kTime = 4;
constexpr int64_t kWidth = 8;
constexpr int64_t kHeads = 2;
constexpr int64_t kExperts = 3;
constexpr int64_t kVocabulary = 11;

Tensors sequence_input() {
  return {torch::randn({kBatch, kTime, kWidth})};
}

/// Returns a model whose parameters and buffers are those of `module`.
template <class M>
Model model_of(const M& module, Block block, std::function<Tensors()> make_inputs) {
  return {module->parameters(), module->buffers(), std::move(make_inputs), std::move(block)};
}

class Gpt2BlockImpl : public nn::Module {
 public:
  explicit Gpt2BlockImpl(double attention_dropout)
      : attention_dropout_(attention_dropout),
        norm1_(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        qkv_(register_module("qkv", nn::Linear(kWidth, 3 * kWidth))),
        projection_(register_module("projection", nn::Linear(kWidth, kWidth))),
        norm2_(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        up_(register_module("up", nn::Linear(kWidth, 2 * kWidth))),
        down_(register_module("down", nn::Linear(2 * kWidth, kWidth))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = x + torch::dropout(attention(norm1_(x)), 0.2, /*train=*/true);
    const at::Tensor mlp = down_(torch::gelu(up_(norm2_(h)), "tanh"));
    return h + torch::dropout(mlp, 0.2, /*train=*/true);
  }

 private:
  at::Tensor attention(const at::Tensor& x) {
    const auto heads = [](const at::Tensor& t) {
      return t.view({kBatch, kTime, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const Tensors qkv = qkv_(x).chunk(3, -1);
    const at::Tensor mixed = at::scaled_dot_product_attention(
        heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), {}, attention_dropout_, /*is_causal=*/true);
    return projection_(mixed.transpose(1, 2).reshape({kBatch, kTime, kWidth}));
  }

  double attention_dropout_;
  nn::LayerNorm norm1_;
  nn::Linear qkv_;
  nn::Linear projection_;
  nn::LayerNorm norm2_;
  nn::Linear up_;
  nn::Linear down_;
};
TORCH_MODULE(Gpt2Block);

Model make_gpt2_block(double attention_dropout) {
  Gpt2Block block(attention_dropout);
  return model_of(
      block, [block](const Tensors& in) mutable -> Tensors { return {block->forward(in[0])}; },
      sequence_input);
}

class Top2MoeImpl : public nn::Module {
 public:
  Top2MoeImpl() : gate_(register_module("gate", nn::Linear(kWidth, kExperts))) {
    for (int64_t i = 0; i < kExperts; ++i) experts_->push_back(nn::Linear(kWidth, kWidth));
    register_module("experts", experts_);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor tokens = x.reshape({-1, kWidth});
    const auto [weights, choice] = gate_(tokens).softmax(-1).topk(2, -1);
    at::Tensor mixed = torch::zeros_like(tokens);
    for (int64_t i = 0; i < kExperts; ++i) {
      const Tensors chosen = choice.eq(i).nonzero().unbind(1);
      const at::Tensor output =
          experts_[i]->as<nn::Linear>()->forward(tokens.index_select(0, chosen[0]));
      const at::Tensor weight = weights.index({chosen[0], chosen[1]}).unsqueeze(1);
      mixed = mixed.index_add(0, chosen[0], (output.relu() * weight).to(mixed.dtype()));
    }
    return x + mixed.view_as(x);
  }

 private:
  nn::Linear gate_;
  nn::ModuleList experts_;
};
TORCH_MODULE(Top2Moe);

/// Saves an input, a parameter and its own output.
struct CubeAndExp : torch::autograd::Function<CubeAndExp> {
  static Tensors forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                         const at::Tensor& weight, double scale) {
    const at::Tensor exp = (x * scale).exp();
    context->save_for_backward({x, weight, exp});
    context->saved_data["scale"] = scale;
    return {x.pow(3) * weight, exp};
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& grads) {
    const Tensors saved = context->get_saved_variables();
    const double scale = context->saved_data["scale"].toDouble();
    const at::Tensor& x = saved[0];
    const at::Tensor grad_x = grads[0] * 3 * x.pow(2) * saved[1] + grads[1] * saved[2] * scale;
    return {grad_x, (grads[0] * x.pow(3)).sum(), at::Tensor()};
  }
};

}  // namespace

Model make_mlp() {
  nn::Sequential mlp(nn::Linear(kWidth, 2 * kWidth), nn::GELU(), nn::Linear(2 * kWidth, kWidth),
                     nn::Tanh());
  return model_of(
      mlp, [mlp](const Tensors& in) mutable -> Tensors { return {mlp->forward(in[0])}; },
      sequence_input);
}

Model make_flash_gpt2_block() {
  return make_gpt2_block(/*attention_dropout=*/0);
}

Model make_math_gpt2_block() {
  Model model = make_gpt2_block(/*attention_dropout=*/0);
  model.math_attention = true;
  return model;
}

Model make_attention_dropout_gpt2_block() {
  return make_gpt2_block(/*attention_dropout=*/0.1);
}

Model make_conv_batch_norm() {
  nn::Conv2d convolution(nn::Conv2dOptions(3, 3, 3).padding(1));
  nn::BatchNorm2d norm(3);
  nn::Sequential layers(convolution, norm, nn::ReLU(nn::ReLUOptions(/*inplace=*/true)));
  const Block block = [layers, norm](const Tensors& in) mutable -> Tensors {
    const at::Tensor y = layers->forward(in[0]);
    return {y * (1 + norm->running_mean.mean())};  // a replay must find the old statistics
  };
  return model_of(layers, block, [] { return Tensors{torch::randn({kBatch, 3, 5, 5})}; });
}

Model make_lstm() {
  nn::LSTM lstm(nn::LSTMOptions(kWidth, kWidth).num_layers(2).dropout(0.2));
  const Block block = [lstm](const Tensors& in) mutable -> Tensors {
    auto [output, state] = lstm->forward(in[0], std::tuple(in[1], in[2]));
    return {output, std::get<0>(state), std::get<1>(state)};
  };
  return model_of(lstm, block, [] {
    return Tensors{torch::randn({kTime, kBatch, kWidth}), torch::randn({2, kBatch, kWidth}),
                   torch::randn({2, kBatch, kWidth})};
  });
}

Model make_top2_moe() {
  Top2Moe moe;
  return model_of(
      moe, [moe](const Tensors& in) mutable -> Tensors { return {moe->forward(in[0])}; },
      sequence_input);
}

Model make_tied_embedding() {
  nn::Embedding embedding(kVocabulary, kWidth);
  const Block block = [embedding](const Tensors& in) mutable -> Tensors {
    const at::Tensor hidden = (in[0] + embedding(in[1])).tanh();
    const at::Tensor logits = F::linear(hidden, embedding->weight);
    return {torch::matmul(logits.softmax(-1), embedding->weight), logits};
  };
  return model_of(embedding, block, [] {
    return Tensors{torch::randn({kBatch, kTime, kWidth}),
                   torch::randint(kVocabulary, {kBatch, kTime}, torch::kLong)};
  });
}

Model make_custom_function() {
  const at::Tensor weight = torch::randn({}).requires_grad_();
  const Block block = [weight](const Tensors& in) -> Tensors {
    const Tensors parts = CubeAndExp::apply(in[0].sin(), weight, 0.5);
    return {parts[0] + parts[1].cos(), parts[1]};
  };
  return {{weight}, {}, sequence_input, block};
}

Model make_in_place_views() {
  nn::Linear linear(kWidth, kWidth);
  const at::Tensor scale = torch::randn({kWidth}).requires_grad_();
  const Block block = [linear, scale](const Tensors& in) mutable -> Tensors {
    const at::Tensor h = linear(in[0]);
    h.select(1, 0).mul_(2);
    h.narrow(2, 0, kWidth / 2).add_(in[0].narrow(2, kWidth / 2, kWidth / 2).tanh());
    h.view({-1}).sigmoid_();
    const Tensors halves = h.chunk(2, 2);
    const at::Tensor swapped = torch::cat({halves[1], halves[0]}, 2) * h;
    at::Tensor out = swapped.clone().unsqueeze_(0).squeeze_(0);
    out.add_(in[0]).mul_(scale);
    out.transpose(1, 2).select(1, 0).exp_();
    return {out, halves[1]};
  };
  Tensors parameters = linear->parameters();
  parameters.push_back(scale);
  return {parameters, {}, sequence_input, block};
}

Model make_returned_input() {
  nn::Linear linear(kWidth, kWidth);
  return model_of(
      linear,
      [linear](const Tensors& in) mutable -> Tensors {
        return {linear(in[0]).sigmoid(), in[0], linear->weight.view({-1}), linear->bias};
      },
      sequence_input);
}

}  // namespace remat::matrix
