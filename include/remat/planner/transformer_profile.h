// SPDX-License-Identifier: BSD-3-Clause

// Profiles of GPT-2-like models computed from shapes and rates, for hardware that is not at hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <remat/planner/profile.h>
#include <remat/policy/export.h>

namespace remat {

enum class Attention : uint8_t {
  kEager,  ///< Scores, softmax and dropout are tensors of batch * heads * sequence^2 elements.
  kFlash,  ///< One op that keeps only its output and the log-sum-exp of each row.
};

struct TransformerShape {
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t vocabulary = 50257;
  int64_t batch = 1;
  int64_t sequence = 1024;
  Attention attention = Attention::kEager;
  bool fused_head = false;  ///< Computes the loss in 16 chunks, without a tensor of all logits
};

/// The speed of a GPU. An op takes max(FLOP / rate, bytes / bandwidth) + launch.
struct DeviceRates {
  std::string name;
  double tflops = 0;     ///< 1e12 floating point operations per second
  double gbps = 0;       ///< Memory bandwidth, 1e9 bytes per second
  double launch_us = 0;  ///< Overhead of every op
  int64_t element_bytes = 4;
};

/// The shape of "gpt2-small", "gpt2-medium", "gpt2-large" or "gpt2-xl".
/// @throws std::invalid_argument for other names.
REMAT_API TransformerShape transformer_shape(std::string_view name);

/// Rates of "v100" (fp32) or "a100" (bf16) that real kernels reach, not those of data sheets; see
/// docs/reference/plan-files.md.
/// @throws std::invalid_argument for other names.
REMAT_API DeviceRates device_rates(std::string_view name);

/// A profile whose regions are the embedding, attention and MLP of every layer, and the head; a
/// layer may run as one region. docs/reference/plan-files.md describes the method.
/// @throws std::invalid_argument if a size is not positive, the width is no multiple of the heads,
/// a rate is out of range, or times or bytes come out too large to plan.
REMAT_API Profile transformer_profile(const TransformerShape& shape, const DeviceRates& rates);

}  // namespace remat
