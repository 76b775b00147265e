// SPDX-License-Identifier: BSD-3-Clause

// Ops of libraries that write what their schemas do not mark.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include <remat/tape/op_call.h>

namespace remat {

/// Looks at the arguments of an op of a library before and after it runs: at the versions of those
/// that its schema does not mark as written, and on the CPU at some words of their memory.
class UnmarkedWriteCheck {
 public:
  explicit UnmarkedWriteCheck(const OpCall& call);

  /// The op has run. Throws NotImplementedError if it has written one of them: nobody kept what was
  /// there before.
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
