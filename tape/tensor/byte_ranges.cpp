// SPDX-License-Identifier: BSD-3-Clause

// Sets of bytes, and the bytes that a layout covers.
#include <remat/tape/byte_ranges.h>

#include <c10/core/ScalarType.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace remat {
namespace {

constexpr int64_t kMostRuns = 4096;

struct Dim {
  int64_t size;
  int64_t stride;
};

/// Returns the dimensions along which elements differ, the innermost first.
c10::SmallVector<Dim, 6> distinct_dims(const TensorLayout& layout) {
  c10::SmallVector<Dim, 6> dims;
  for (const auto d : c10::irange(layout.sizes.size())) {
    if (layout.sizes[d] != 1 && layout.strides[d] != 0)
      dims.push_back({layout.sizes[d], layout.strides[d]});
  }
  std::sort(dims.begin(), dims.end(),
            [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  return dims;
}

}  // namespace

void ByteRanges::add(const ByteRange& range) {
  if (range.empty()) return;
  size_t begin = range.begin;
  size_t end = range.end;
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin() && std::prev(next)->second >= begin) --next;
  while (next != ends_.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace(begin, end);
}

bool ByteRanges::contains(const ByteRange& range) const {
  if (range.empty()) return true;
  const auto next = ends_.upper_bound(range.begin);
  return next != ends_.begin() && std::prev(next)->second >= range.end;
}

ByteRange span_of(const TensorLayout& layout) {
  const size_t end = layout.bytes_spanned();
  if (end == 0) return {};
  return {static_cast<size_t>(layout.offset) * c10::elementSize(layout.dtype), end};
}

std::optional<ByteRuns> runs_of(const TensorLayout& layout) {
  const auto item = static_cast<int64_t>(c10::elementSize(layout.dtype));
  if (span_of(layout).empty()) return ByteRuns();
  const c10::SmallVector<Dim, 6> dims = distinct_dims(layout);
  int64_t run = 1;  // In elements.
  size_t outer = 0;
  for (; outer < dims.size() && dims[outer].stride <= run; ++outer)
    run = std::max(run, (dims[outer].size - 1) * dims[outer].stride + run);
  int64_t count = 1;
  for (size_t d = outer; d < dims.size(); ++d) {
    count *= dims[d].size;
    if (count > kMostRuns) return std::nullopt;
  }
  ByteRuns runs{{static_cast<size_t>(layout.offset * item),
                 static_cast<size_t>((layout.offset + run) * item)}};
  for (size_t d = outer; d < dims.size(); ++d) {
    const auto known = static_cast<int64_t>(runs.size());
    for (const auto i : c10::irange(int64_t{1}, dims[d].size)) {
      const auto step = static_cast<size_t>(i * dims[d].stride * item);
      for (const auto j : c10::irange(known)) {
        const ByteRange first = runs[j];
        runs.push_back({first.begin + step, first.end + step});
      }
    }
  }
  return runs;
}

}  // namespace remat
