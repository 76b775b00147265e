// SPDX-License-Identifier: BSD-3-Clause

// A byte-level GPT-2 whose blocks run plain or as checkpointed regions.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace gpt2_train {

struct Gpt2Config {
  int64_t width = 128;
  int64_t depth = 16;
  int64_t heads = 4;
  int64_t sequence = 128;
  double dropout = 0.1;
};

/// The blocks that are regions.
enum class Layout {
  kPlain,   // no block; autograd keeps all saved tensors
  kBlocks,  // each block
  kNested,  // each block, inside outer regions of about sqrt(depth) blocks
  kBudget,  // no block; auto_checkpoint() plans the step for half of plain's peak
};

/// The tensors that regions keep instead of recomputing them.
enum class Saved { kNothing, kAttention, kMatmuls, kEverything };

/// How the blocks run. Loss and gradients are bitwise the same in all modes.
struct Mode {
  const char* name;
  Layout layout = Layout::kPlain;
  Saved saved = Saved::kNothing;
};

/// Number of blocks in one outer region of Layout::kNested.
size_t group_size(size_t depth);

/// Causal self-attention and a two-layer perceptron, each with norm and residual. Input and output
/// are [batch, sequence, width].
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(const Gpt2Config& config, Saved saved);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor attend(const at::Tensor& qkv) const;

  int64_t heads_;
  double dropout_;
  Saved saved_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear qkv_;
  torch::nn::Linear projection_;
  torch::nn::Dropout attention_dropout_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Linear up_;
  torch::nn::GELU gelu_;
  torch::nn::Linear down_;
  torch::nn::Dropout mlp_dropout_;
};
TORCH_MODULE(Block);

/// Maps bytes, [batch, sequence] of int64, to logits of the next bytes, [batch, sequence, 256].
class Gpt2Impl : public torch::nn::Module {
 public:
  Gpt2Impl(const Gpt2Config& config, Mode mode);
  at::Tensor forward(const at::Tensor& bytes);

 private:
  at::Tensor run_blocks(at::Tensor x) const;

  Mode mode_;
  torch::nn::Embedding byte_embedding_;  // also the weight of the head
  torch::nn::Embedding place_embedding_;
  torch::nn::Dropout dropout_;
  std::vector<Block> blocks_;
  torch::nn::LayerNorm final_norm_;
};
TORCH_MODULE(Gpt2);

}  // namespace gpt2_train
