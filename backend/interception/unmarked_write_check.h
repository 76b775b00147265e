// SPDX-License-Identifier: BSD-3-Clause

// Detecting writes by library ops that their schemas do not mark.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include <remat/engine/op_call.h>

namespace remat {

/// Compares arguments of a library op before and after it runs: the versions of arguments that its
/// schema does not mark as written, and on the CPU some words of their memory.
class UnmarkedWriteCheck {
 public:
  explicit UnmarkedWriteCheck(const OpCall& call);

  /// Call it when the op has run. Throws NotImplementedError if the op has written an argument
  /// without a mark, because nobody has kept the old value.
  void check(const OpInfo& info) const;

 private:
  struct Argument {
    size_t number;
    at::Tensor tensor;
    std::optional<uint32_t> version;
    std::optional<uint64_t> sample;
  };
  c10::SmallVector<Argument, 4> arguments_;
};

}  // namespace remat
