// SPDX-License-Identifier: BSD-3-Clause

// The GPT-2, and the ways in which its blocks run.
#include "model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <remat/remat.h>

namespace gpt2_train {

namespace {

namespace nn = torch::nn;

constexpr int64_t kBytes = 256;
constexpr double kInitialDeviation = 0.02;  // the value in GPT-2

nn::LayerNorm make_norm(int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}));
}

nn::Linear make_linear(int64_t inputs, int64_t outputs, double deviation) {
  nn::Linear linear(inputs, outputs);
  nn::init::normal_(linear->weight, 0.0, deviation);
  nn::init::zeros_(linear->bias);
  return linear;
}

nn::Embedding make_embedding(int64_t entries, int64_t width) {
  nn::Embedding embedding(entries, width);
  nn::init::normal_(embedding->weight, 0.0, kInitialDeviation);
  return embedding;
}

// GPT-2 divides the initial deviation of layers that feed the residual stream by the square root of
// their number.
nn::Linear make_residual_linear(int64_t inputs, const Gpt2Config& config) {
  const double additions = 2.0 * static_cast<double>(config.depth);
  return make_linear(inputs, config.width, kInitialDeviation / std::sqrt(additions));
}

// A user of remat writes functions such as the ones below, down to run_groups_as_regions().

remat::Policy policy_of(Saved part, Saved saved) {
  const bool is_saved = saved == part || saved == Saved::kEverything;
  return is_saved ? remat::Policy::kSave : remat::Policy::kRecompute;
}

// Runs a layer as a named call. A region keeps or recomputes the call's tensors by its policy;
// outside of regions only the layer runs.
at::Tensor run_linear(const nn::Linear& linear, const char* name, Saved saved,
                      const at::Tensor& x) {
  const auto forward = [&linear](const at::Tensor& in) {
    return torch::linear(in, linear->weight, linear->bias);
  };
  return remat::native_op(forward, name, policy_of(Saved::kMatmuls, saved))(x);
}

// The activation is an argument of the region, so that remat keeps it. `block` is captured by copy,
// which shares the module.
at::Tensor run_as_region(const Block& block, size_t index, Saved saved, const at::Tensor& x) {
  const auto region = remat::checkpoint({.name = "block" + std::to_string(index)});
  return region([block, saved](const at::Tensor& input) {
    const auto forward = [block](const at::Tensor& in) { return block.ptr()->forward(in); };
    return remat::native_op(forward, "block", policy_of(Saved::kEverything, saved))(input);
  })(x);
}

at::Tensor run_blocks_as_regions(const std::vector<Block>& blocks, size_t first, size_t last,
                                 Saved saved, at::Tensor x) {
  for (size_t i = first; i < last; ++i) {
    x = run_as_region(blocks[i], i, saved, x);
  }
  return x;
}

at::Tensor run_groups_as_regions(const std::vector<Block>& blocks, Saved saved, at::Tensor x) {
  const size_t size = group_size(blocks.size());
  for (size_t first = 0; first < blocks.size(); first += size) {
    const size_t last = std::min(first + size, blocks.size());
    const auto region = remat::checkpoint({.name = "group" + std::to_string(first / size)});
    x = region([blocks, first, last, saved](const at::Tensor& input) {
      return run_blocks_as_regions(blocks, first, last, saved, input);
    })(x);
  }
  return x;
}

}  // namespace

size_t group_size(size_t depth) {
  return static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(depth))));
}

// [batch, sequence, 3 * width] -> [batch, sequence, width]
at::Tensor BlockImpl::attend(const at::Tensor& qkv) const {
  const int64_t batch = qkv.size(0);
  const int64_t sequence = qkv.size(1);
  const int64_t width = qkv.size(2) / 3;
  // Query, key and value, each [batch, heads, sequence, width / heads].
  const auto parts =
      qkv.view({batch, sequence, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor mixed = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/is_training() ? dropout_ : 0.0,
      /*is_causal=*/true);
  return mixed.transpose(1, 2).reshape({batch, sequence, width});
}

BlockImpl::BlockImpl(const Gpt2Config& config, Saved saved)
    : heads_(config.heads),
      dropout_(config.dropout),
      saved_(saved),
      attention_norm_(register_module("attention_norm", make_norm(config.width))),
      qkv_(register_module("qkv", make_linear(config.width, 3 * config.width, kInitialDeviation))),
      projection_(register_module("projection", make_residual_linear(config.width, config))),
      attention_dropout_(register_module("attention_dropout", nn::Dropout(config.dropout))),
      mlp_norm_(register_module("mlp_norm", make_norm(config.width))),
      up_(register_module("up", make_linear(config.width, 4 * config.width, kInitialDeviation))),
      gelu_(register_module("gelu", nn::GELU(nn::GELUOptions().approximate("tanh")))),
      down_(register_module("down", make_residual_linear(4 * config.width, config))),
      mlp_dropout_(register_module("mlp_dropout", nn::Dropout(config.dropout))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const auto attention = [this](const at::Tensor& qkv) { return attend(qkv); };
  const at::Tensor qkv = run_linear(qkv_, "qkv", saved_, attention_norm_->forward(x));
  const at::Tensor mixed =
      remat::native_op(attention, "attention", policy_of(Saved::kAttention, saved_))(qkv);
  const at::Tensor projected = run_linear(projection_, "projection", saved_, mixed);
  const at::Tensor y = x + attention_dropout_->forward(projected);
  const at::Tensor up = run_linear(up_, "up", saved_, mlp_norm_->forward(y));
  const at::Tensor down = run_linear(down_, "down", saved_, gelu_->forward(up));
  return y + mlp_dropout_->forward(down);
}

Gpt2Impl::Gpt2Impl(const Gpt2Config& config, Mode mode)
    : mode_(mode),
      byte_embedding_(register_module("byte_embedding", make_embedding(kBytes, config.width))),
      place_embedding_(
          register_module("place_embedding", make_embedding(config.sequence, config.width))),
      dropout_(register_module("dropout", nn::Dropout(config.dropout))),
      final_norm_(register_module("final_norm", make_norm(config.width))) {
  for (int64_t i = 0; i < config.depth; ++i) {
    blocks_.emplace_back(register_module("block" + std::to_string(i), Block(config, mode.saved)));
  }
}

at::Tensor Gpt2Impl::forward(const at::Tensor& bytes) {
  const at::Tensor places = torch::arange(bytes.size(1));
  at::Tensor x = byte_embedding_->forward(bytes) + place_embedding_->forward(places);
  x = run_blocks(dropout_->forward(x));
  return torch::linear(final_norm_->forward(x), byte_embedding_->weight);
}

at::Tensor Gpt2Impl::run_blocks(at::Tensor x) const {
  switch (mode_.layout) {
    case Layout::kPlain:
    case Layout::kBudget:
      for (size_t i = 0; i < blocks_.size(); ++i) {
        const remat::NameScope scope(fmt::format("block {}", i));  // one region may hold all blocks
        x = Block(blocks_[i])->forward(x);
      }
      return x;
    case Layout::kBlocks:
      return run_blocks_as_regions(blocks_, 0, blocks_.size(), mode_.saved, std::move(x));
    case Layout::kNested:
      return run_groups_as_regions(blocks_, mode_.saved, std::move(x));
  }
  TORCH_INTERNAL_ASSERT(false, "no such layout");
}

}  // namespace gpt2_train
