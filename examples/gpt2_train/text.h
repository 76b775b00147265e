// SPDX-License-Identifier: BSD-3-Clause

// Text as bytes, and random samples of it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>

namespace gpt2_train {

/// Reads a file, or all files below a folder except hidden ones, in the order of their paths.
/// Throws std::invalid_argument if `path` is neither or cannot be read.
std::string read_text(const std::filesystem::path& path);

/// Input and expected output of the model: bytes of text, [batch, sequence] of int64.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;  // the inputs shifted by one byte
};

/// Draws batches from random positions of a text. A seed gives the same batches on every machine.
class BatchSampler {
 public:
  /// Throws std::invalid_argument if the text is not longer than one sample of `sequence` bytes.
  BatchSampler(std::string text, int64_t batch, int64_t sequence, uint64_t seed);

  Batch next();

 private:
  std::string text_;
  int64_t batch_;
  int64_t sequence_;
  std::mt19937_64 random_;
};

}  // namespace gpt2_train
