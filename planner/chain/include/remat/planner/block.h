// SPDX-License-Identifier: BSD-3-Clause

// A region in numbers: tensors and ops by index, times in ticks that add up exactly in any order.
#pragma once

#include <bitset>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace remat::detail {

/// Times in millionths of a microsecond: whole numbers, so sums are exact.
using Ticks = int64_t;

inline Ticks to_ticks(double us) {
  return std::llround(us * 1e6);
}
inline double to_us(Ticks ticks) {
  return static_cast<double>(ticks) / 1e6;
}

constexpr size_t max_region_ops = 256;  ///< Limit for a region that cannot be split.
using OpSet = std::bitset<max_region_ops>;

struct BlockTensor {
  int64_t bytes = 0;
  int producer = -1;     ///< Index of an op; -1 for the region's input
  int last_reader = -1;  ///< Last op whose forward reads the tensor; the producer if none does
  int first_backward_user = -1;  ///< First op whose backward needs the tensor; -1 if none does
  bool has_gradient = false;

  bool operator==(const BlockTensor&) const = default;
};

struct BlockOp {
  Ticks fwd = 0;
  Ticks bwd = 0;
  int64_t fwd_tmp = 0;  ///< Workspace bytes of its forward
  int64_t bwd_tmp = 0;  ///< Workspace bytes of its backward
  std::vector<int> ins;
  std::vector<int> outs;  ///< The first has a gradient, the others have none.
  std::vector<int> backward_needs;

  bool operator==(const BlockOp&) const = default;
};

/// Tensor 0 is the region's input. Add ops in the order in which they run, fill their `ins` and
/// `backward_needs`, and call link() at the end.
struct Block {
  Block(int64_t input_bytes, bool input_has_gradient);

  int64_t input_bytes() const { return tensors[0].bytes; }
  int64_t output_bytes() const { return tensors[output].bytes; }
  bool inner(int tensor) const { return tensor != 0 && tensor != output; }

  /// Adds a tensor to the outs of the last op, and returns its index.
  int add_out(int64_t bytes);
  /// Fills in what follows from the ops: readers, backward users, gradients and sums.
  void link(int output_tensor);

  bool operator==(const Block&) const = default;

  std::vector<BlockOp> ops;
  std::vector<BlockTensor> tensors;
  int output = 0;
  Ticks fwd = 0;  ///< Sum over all ops
  Ticks bwd = 0;  ///< Sum over all ops
};

void add_once(std::vector<int>& tensors, int tensor);

/// Per op: true if a gradient reaches its backward, because the op's first out is the region's
/// output or is read by another op that a gradient reaches.
std::vector<char> ops_with_gradient(const Block& block);

/// True if the gradient of the region's output reaches the region's input.
bool passes_gradient(const Block& block);

}  // namespace remat::detail
