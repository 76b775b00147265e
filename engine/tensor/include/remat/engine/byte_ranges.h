// SPDX-License-Identifier: BSD-3-Clause

// Sets of bytes within a storage.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <map>
#include <optional>

#include <remat/engine/export.h>
#include <remat/engine/tensor_layout.h>

namespace remat {

/// The bytes in [begin, end).
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
  bool empty() const { return begin >= end; }
};

/// A set of bytes, as ranges that neither touch nor overlap. Adding a range and looking one up take
/// logarithmic time.
class REMAT_API ByteRanges {
 public:
  void add(const ByteRange& range);
  bool contains(const ByteRange& range) const;

 private:
  std::map<size_t, size_t> ends_;  // Maps each range's begin to its end.
};

/// Range from the first byte of the elements to the last.
REMAT_API ByteRange span_of(const TensorLayout& layout);

/// The bytes of the elements, as runs without gaps; nullopt if there are more than 4096 runs.
using ByteRuns = c10::SmallVector<ByteRange, 1>;
REMAT_API std::optional<ByteRuns> runs_of(const TensorLayout& layout);

}  // namespace remat
