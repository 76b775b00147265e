// SPDX-License-Identifier: BSD-3-Clause

// A GPT-2 whose parameters are made on their own device, so that host memory does not limit its
// size.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

struct GptSizes {
  int64_t vocabulary = 50257;
  int64_t length = 1024;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t layers = 12;
};

/// One block: attention with a causal mask, then a feed-forward, each after a norm.
class GptBlock : public torch::nn::Module {
 public:
  GptBlock(const GptSizes& sizes, const at::TensorOptions& options) : heads_(sizes.heads) {
    const int64_t width = sizes.width;
    norm1_ = add("norm1", {width}, options);
    norm2_ = add("norm2", {width}, options);
    qkv_ = add("qkv", {3 * width, width}, options);
    out_ = add("out", {width, width}, options);
    up_ = add("up", {4 * width, width}, options);
    down_ = add("down", {width, 4 * width}, options);
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor mid = x + torch::linear(attention(norm(x, norm1_), mask), out_);
    const at::Tensor hidden = torch::gelu(torch::linear(norm(mid, norm2_), up_));
    return mid + torch::linear(hidden, down_);
  }

 private:
  at::Tensor add(const std::string& name, at::IntArrayRef sizes, const at::TensorOptions& options) {
    return register_parameter(name, torch::randn(sizes, options).mul_(0.02));
  }

  static at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) {
    return torch::layer_norm(x, weight.sizes(), weight);
  }

  at::Tensor attention(const at::Tensor& x, const at::Tensor& mask) const {
    const int64_t per_head = x.size(2) / heads_;
    const auto parts =
        torch::linear(x, qkv_).view({x.size(0), x.size(1), 3, heads_, per_head}).unbind(2);
    const at::Tensor q = parts[0].transpose(1, 2);
    const at::Tensor k = parts[1].transpose(1, 2);
    const at::Tensor v = parts[2].transpose(1, 2);
    at::Tensor scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(static_cast<double>(per_head));
    scores = scores.masked_fill(mask, -1e9).softmax(-1);
    scores = torch::dropout(scores, 0.1, is_training());
    return scores.matmul(v).transpose(1, 2).reshape(x.sizes());
  }

  int64_t heads_;
  at::Tensor norm1_, norm2_, qkv_, out_, up_, down_;
};

class Gpt : public torch::nn::Module {
 public:
  Gpt(const GptSizes& sizes, const at::TensorOptions& options) {
    tokens_ = register_parameter("tokens", torch::randn({sizes.vocabulary, sizes.width}, options));
    places_ = register_parameter("places", torch::randn({sizes.length, sizes.width}, options));
    for (int64_t i = 0; i < sizes.layers; ++i) {
      blocks_.push_back(
          register_module("block" + std::to_string(i), std::make_shared<GptBlock>(sizes, options)));
    }
  }

  /// Returns the cross entropy of the next tokens. `ids`: int64 [batch, length + 1].
  at::Tensor loss(const at::Tensor& ids) {
    const int64_t length = ids.size(1) - 1;
    const at::Tensor mask =
        torch::ones({length, length}, tokens_.options().dtype(torch::kBool)).triu(1);
    at::Tensor x =
        torch::embedding(tokens_, ids.narrow(1, 0, length)) + places_.narrow(0, 0, length);
    for (const auto& block : blocks_) x = block->forward(x, mask);
    const at::Tensor logits = torch::linear(x, tokens_);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                ids.narrow(1, 1, length).reshape({-1}));
  }

 private:
  at::Tensor tokens_, places_;
  std::vector<std::shared_ptr<GptBlock>> blocks_;
};
