// SPDX-License-Identifier: BSD-3-Clause

// Bytes and operations of GPT-2-like models, op by op.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <remat/planner/transformer_profile.h>

#include "profile_check.h"

namespace remat {

namespace {

constexpr double flash_efficiency = 0.6;  // share of a matrix product's rate
constexpr double flash_backward = 2.5;    // times the forward: five matrix products, not two
constexpr int64_t head_chunks = 16;
constexpr int64_t statistics_bytes = 8;  // mean and reciprocal deviation of a row, in fp32

[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         const std::string& got) {
  throw std::invalid_argument("[transformer_profile] " + what + ": expected " + expected +
                              ", got " + got + ". Correct it.");
}

/// Times are rounded to 0.01 us, since more digits would not be accurate.
double rounded(double us) {
  return std::round(us * 100) / 100;
}

class Generator {
 public:
  Generator(const TransformerShape& shape, const DeviceRates& rates)
      : shape_(shape),
        rates_(rates),
        rows_(shape.batch * shape.sequence),
        stream_(rows_ * shape.width * rates.element_bytes),
        pairs_(shape.batch * shape.heads * shape.sequence * shape.sequence) {}

  BlockType embedding() const {
    BlockType type{"emb", 8 * rows_, false, "y", {}};
    type.ops.push_back(
        elementwise("emb.lookup", {"in"}, {{"e", stream_}}, {}, 2 * stream_, 2 * stream_));
    type.ops.push_back(dropout("emb.drop", "e", "y", "em", stream_));
    return type;
  }

  BlockType attention() const {
    BlockType type{"attn", stream_, true, "y", {}};
    type.ops.push_back(layer_norm("attn.ln", "a"));
    type.ops.push_back(linear("attn.qkv", "a", "qkv", shape_.width, 3 * shape_.width));
    if (shape_.attention == Attention::kFlash) {
      type.ops.push_back(flash());
    } else {
      add_eager(type);
    }
    type.ops.push_back(linear("attn.proj", "z", "o", shape_.width, shape_.width));
    type.ops.push_back(dropout("attn.odrop", "o", "od", "om", stream_));
    type.ops.push_back(elementwise("attn.add", {"od", "in"}, {{"y", stream_}}, {}, 3 * stream_, 0));
    return type;
  }

  BlockType mlp() const {
    const int64_t wide = 4 * shape_.width;
    BlockType type{"mlp", stream_, true, "y", {}};
    type.ops.push_back(layer_norm("mlp.ln", "m"));
    type.ops.push_back(linear("mlp.fc1", "m", "h", shape_.width, wide));
    type.ops.push_back(
        elementwise("mlp.gelu", {"h"}, {{"g", 4 * stream_}}, {"h"}, 8 * stream_, 12 * stream_));
    type.ops.push_back(linear("mlp.fc2", "g", "f", wide, shape_.width));
    type.ops.push_back(dropout("mlp.drop", "f", "fd", "fm", stream_));
    type.ops.push_back(elementwise("mlp.add", {"fd", "in"}, {{"y", stream_}}, {}, 3 * stream_, 0));
    return type;
  }

  BlockType head() const {
    const int64_t logits = rows_ * shape_.vocabulary * rates_.element_bytes;
    BlockType type{"head", stream_, true, "loss", {}};
    type.ops.push_back(layer_norm("head.ln", "l"));
    const ProfileOp product = linear("head.lm", "l", "lg", shape_.width, shape_.vocabulary);
    const ProfileOp loss = elementwise("head.ce", {"lg"}, {{"loss", 4}, {"lp", logits}}, {"lp"},
                                       2 * logits, 2 * logits);
    if (!shape_.fused_head) {
      type.ops.push_back(product);
      type.ops.push_back(loss);
      return type;
    }
    ProfileOp fused{"head.lmce",
                    "mm",
                    rounded(product.fwd_us + loss.fwd_us),
                    0,
                    logits / head_chunks,
                    2 * (logits / head_chunks),
                    {"l"},
                    {{"loss", 4}},
                    {"l"}};
    fused.bwd_us = rounded(product.bwd_us + loss.bwd_us +
                           fused.fwd_us);  // its backward computes the logits again
    type.ops.push_back(fused);
    return type;
  }

 private:
  double time(double flop, double bytes, double efficiency = 1) const {
    const double compute = flop / (rates_.tflops * efficiency * 1e6);
    return rounded(std::max(compute, bytes / (rates_.gbps * 1e3)) + rates_.launch_us);
  }

  ProfileOp elementwise(const std::string& name, std::vector<std::string> ins,
                        std::vector<ProfileTensor> outs, std::vector<std::string> needs,
                        int64_t fwd_bytes, int64_t bwd_bytes) const {
    return {name,
            "ew",
            time(0, static_cast<double>(fwd_bytes)),
            time(0, static_cast<double>(bwd_bytes)),
            0,
            0,
            std::move(ins),
            std::move(outs),
            std::move(needs)};
  }

  ProfileOp layer_norm(const std::string& name, const std::string& out) const {
    return elementwise(name, {"in"}, {{out, stream_}, {out + "_st", statistics_bytes * rows_}},
                       {"in", out + "_st"}, 2 * stream_, 3 * stream_);
  }

  /// A dropout, which keeps a mask of one byte per element.
  ProfileOp dropout(const std::string& name, const std::string& in, const std::string& out,
                    const std::string& mask, int64_t bytes) const {
    const int64_t mask_bytes = bytes / rates_.element_bytes;
    const int64_t moved = 2 * bytes + mask_bytes;
    return elementwise(name, {in}, {{out, bytes}, {mask, mask_bytes}}, {mask}, moved, moved);
  }

  ProfileOp linear(const std::string& name, const std::string& in, const std::string& out,
                   int64_t from, int64_t to) const {
    const double flop =
        2.0 * static_cast<double>(rows_) * static_cast<double>(from) * static_cast<double>(to);
    const double bytes = static_cast<double>(rates_.element_bytes) *
                         (static_cast<double>(rows_) * static_cast<double>(from + to) +
                          static_cast<double>(from) * static_cast<double>(to));
    const double fwd = time(flop, bytes);
    return {name, "mm", fwd,  rounded(2 * fwd),
            0,    0,    {in}, {{out, rows_ * to * rates_.element_bytes}},
            {in}};
  }

  double attention_flop() const {
    return 2.0 * static_cast<double>(rows_) * static_cast<double>(shape_.sequence) *
           static_cast<double>(shape_.width);
  }

  /// Adds eager attention. Workspaces are contiguous copies of the heads' slices.
  void add_eager(BlockType& type) const {
    const int64_t scores = pairs_ * rates_.element_bytes;
    const double fwd = time(attention_flop(), static_cast<double>(scores + 2 * stream_));
    type.ops.push_back({"attn.scores",
                        "bmm",
                        fwd,
                        rounded(2 * fwd),
                        2 * stream_,
                        2 * stream_,
                        {"qkv"},
                        {{"sc", scores}},
                        {"qkv"}});
    type.ops.push_back(
        elementwise("attn.softmax", {"sc"}, {{"p", scores}}, {"p"}, 2 * scores, 3 * scores));
    type.ops.push_back(dropout("attn.drop", "p", "pd", "pm", scores));
    type.ops.push_back({"attn.av",
                        "bmm",
                        fwd,
                        rounded(2 * fwd),
                        stream_,
                        stream_,
                        {"pd", "qkv"},
                        {{"z", stream_}},
                        {"pd", "qkv"}});
  }

  /// Flash attention. It is causal, so it computes half of the two matrix products.
  ProfileOp flash() const {
    const double fwd = time(attention_flop(), 4.0 * static_cast<double>(stream_), flash_efficiency);
    const int64_t lse = 4 * shape_.batch * shape_.heads * shape_.sequence;
    return {"attn.flash",
            "bmm",
            fwd,
            rounded(flash_backward * fwd),
            0,
            stream_,
            {"qkv"},
            {{"z", stream_}, {"lse", lse}},
            {"qkv", "z", "lse"}};
  }

  const TransformerShape& shape_;
  const DeviceRates& rates_;
  int64_t rows_;
  int64_t stream_;  // bytes of one activation of the model's width
  int64_t pairs_;   // elements of the attention scores
};

/// Attention and MLP as one region, with the tensor between them as an inner tensor.
BlockType merged_layer(const BlockType& attention, const BlockType& mlp) {
  BlockType layer = attention;
  layer.name = "layer";
  const auto rename = [](std::vector<std::string>& names, const std::string& from,
                         const std::string& to) {
    std::replace(names.begin(), names.end(), from, to);
  };
  layer.ops.back().outs[0].name = "y1";
  for (ProfileOp op : mlp.ops) {
    rename(op.ins, "in", "y1");
    rename(op.bwd_needs, "in", "y1");
    layer.ops.push_back(std::move(op));
  }
  return layer;
}

void check(const TransformerShape& shape, const DeviceRates& rates) {
  const auto positive = [](const char* what, int64_t value) {
    if (value < 1 || value > 1000000) refuse(what, "1 to 1000000", std::to_string(value));
  };
  positive("layers", shape.layers);
  positive("width", shape.width);
  positive("heads", shape.heads);
  positive("vocabulary", shape.vocabulary);
  positive("batch", shape.batch);
  positive("sequence", shape.sequence);
  positive("element_bytes", rates.element_bytes);
  if (shape.width % shape.heads != 0) {
    refuse("width", "a multiple of the " + std::to_string(shape.heads) + " heads",
           std::to_string(shape.width));
  }
  if (shape.layers > 2000) refuse("layers", "at most 2000", std::to_string(shape.layers));
  const double pairs = static_cast<double>(shape.batch) * static_cast<double>(shape.heads) *
                       static_cast<double>(shape.sequence) * static_cast<double>(shape.sequence);
  const double rows = static_cast<double>(shape.batch) * static_cast<double>(shape.sequence);
  const double widest = static_cast<double>(std::max(4 * shape.width, shape.vocabulary));
  if (std::max(pairs, rows * widest) * static_cast<double>(rates.element_bytes) > 1e14) {
    refuse("batch and sequence", "tensors of at most 1e14 bytes", "more");
  }
  const auto within = [](const char* what, double value, double low, double high) {
    if (value >= low && value <= high) return;  // false for NaN
    refuse(what, detail::in_digits(low) + " to " + detail::in_digits(high),
           detail::in_digits(value));
  };
  within("tflops", rates.tflops, 1e-6, 1e9);
  within("gbps", rates.gbps, 1e-6, 1e9);
  within("launch_us", rates.launch_us, 0, 1e6);
}

}  // namespace

TransformerShape transformer_shape(std::string_view name) {
  TransformerShape shape;
  const auto sized = [&](int64_t layers, int64_t width, int64_t heads) {
    shape.layers = layers;
    shape.width = width;
    shape.heads = heads;
    return shape;
  };
  if (name == "gpt2-small") return sized(12, 768, 12);
  if (name == "gpt2-medium") return sized(24, 1024, 16);
  if (name == "gpt2-large") return sized(36, 1280, 20);
  if (name == "gpt2-xl") return sized(48, 1600, 25);
  refuse("model", "gpt2-small, gpt2-medium, gpt2-large or gpt2-xl",
         "\"" + std::string(name) + "\"");
}

DeviceRates device_rates(std::string_view name) {
  if (name == "v100") return {"v100", 12.5, 700, 6, 4};
  if (name == "a100") return {"a100", 195, 1300, 4, 2};
  refuse("gpu", "v100 or a100", "\"" + std::string(name) + "\"");
}

Profile transformer_profile(const TransformerShape& shape, const DeviceRates& rates) {
  check(shape, rates);
  const Generator generator(shape, rates);
  Profile profile;
  profile.name = "transformer_" + std::to_string(shape.layers) + "x" + std::to_string(shape.width) +
                 "_" + std::to_string(shape.batch) + "x" + std::to_string(shape.sequence) + "_" +
                 rates.name;
  profile.block_types = {generator.embedding(), generator.attention(), generator.mlp(),
                         generator.head()};
  profile.block_types.push_back(merged_layer(profile.block_types[1], profile.block_types[2]));
  profile.chain.push_back(0);
  for (int64_t i = 0; i < shape.layers; ++i) {
    profile.chain.push_back(1);
    profile.chain.push_back(2);
  }
  profile.chain.push_back(3);
  profile.merge_patterns.push_back({{1, 2}, 4});
  try {
    detail::check_profile(profile);
  } catch (const detail::Fault& fault) {
    refuse("shape and rates (" + fault.path + ")", fault.expected, fault.got);
  }
  return profile;
}

}  // namespace remat
