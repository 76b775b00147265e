// SPDX-License-Identifier: BSD-3-Clause

// Reading layouts from tensors, making tensors with a given layout, and the bytes that a layout
// covers.
#include <remat/engine/tensor_layout.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <remat/engine/byte_ranges.h>
#include <remat/engine/strided_keys.h>
#include <remat/placeholder/placeholder_impl.h>

namespace remat {
namespace {

constexpr int64_t kMostRuns = 4096;

/// Stride and size of the dimensions along which elements differ, the innermost first.
using Dims = c10::SmallVector<std::pair<int64_t, int64_t>, 6>;

Dims distinct_dims(const TensorLayout& layout) {
  Dims dims;
  for (const auto d : c10::irange(layout.sizes.size())) {
    if (layout.sizes[d] != 1 && layout.strides[d] != 0)
      dims.emplace_back(layout.strides[d], layout.sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  return dims;
}

}  // namespace

TensorLayout::TensorLayout(const at::Tensor& tensor)
    : sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()),
      offset(tensor.storage_offset()),
      dtype(tensor.scalar_type()),
      conjugated(tensor.is_conj()),
      negated(tensor.is_neg()) {}

TensorLayout TensorLayout::flat(size_t size_bytes, c10::ScalarType dtype) {
  TensorLayout layout;
  layout.sizes = {static_cast<int64_t>(size_bytes / c10::elementSize(dtype))};
  layout.strides = {1};
  layout.dtype = dtype;
  return layout;
}

size_t TensorLayout::bytes_spanned() const {
  int64_t last = offset;
  for (const auto d : c10::irange(sizes.size())) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return static_cast<size_t>(last + 1) * c10::elementSize(dtype);
}

bool TensorLayout::covers(size_t size_bytes) const {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const size_t bytes = static_cast<size_t>(count) * c10::elementSize(dtype);
  return offset == 0 && bytes == size_bytes && bytes_spanned() == bytes;
}

bool has_layout(const at::Tensor& tensor) {
  if (C10_LIKELY(has_strided_keys(tensor)))
    return static_cast<bool>(tensor.unsafeGetTensorImpl()->unsafe_storage());
  return tensor.has_storage() && tensor.layout() == c10::Layout::Strided && !tensor.is_nested() &&
         !tensor.is_quantized() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         !tensor.key_set().has(c10::DispatchKey::Python);
}

bool is_freed(const at::Tensor& tensor) {
  if (!has_layout(tensor) || tensor.numel() == 0) return false;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  int64_t last = impl.storage_offset();
  for (const auto d : c10::irange(impl.dim())) last += (impl.size(d) - 1) * impl.stride(d);
  return impl.unsafe_storage().nbytes() < static_cast<size_t>(last + 1) * impl.itemsize();
}

bool covers_storage(const at::Tensor& tensor) {
  return TensorLayout(tensor).covers(tensor.storage().nbytes());
}

TensorLayout whole_layout(const at::Tensor& tensor) {
  TensorLayout layout(tensor);
  const size_t size_bytes = tensor.storage().nbytes();
  return layout.covers(size_bytes) ? layout : TensorLayout::flat(size_bytes, c10::kByte);
}

at::Tensor lay_out(const c10::Storage& storage, const TensorLayout& layout) {
  const caffe2::TypeMeta dtype = c10::scalarTypeToTypeMeta(layout.dtype);
  c10::intrusive_ptr<c10::TensorImpl> impl;
  if (PlaceholderStorage::is(storage)) {
    impl = c10::make_intrusive<PlaceholderImpl>(storage, dtype);
  } else {
    const auto key = c10::computeDispatchKey(layout.dtype, c10::kStrided, storage.device());
    impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key),
                                                dtype);
  }
  impl->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  if (layout.conjugated) impl->_set_conj(true);
  if (layout.negated) impl->_set_neg(true);
  return at::Tensor(std::move(impl));
}

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
  const Dims dims = distinct_dims(layout);
  int64_t run = 1;  // In elements.
  size_t outer = 0;
  for (; outer < dims.size() && dims[outer].first <= run; ++outer)
    run = std::max(run, (dims[outer].second - 1) * dims[outer].first + run);
  int64_t count = 1;
  for (size_t d = outer; d < dims.size(); ++d) {
    count *= dims[d].second;
    if (count > kMostRuns) return std::nullopt;
  }
  ByteRuns runs{{static_cast<size_t>(layout.offset * item),
                 static_cast<size_t>((layout.offset + run) * item)}};
  for (size_t d = outer; d < dims.size(); ++d) {
    const auto [stride, size] = dims[d];
    const auto known = static_cast<int64_t>(runs.size());
    for (const auto i : c10::irange(int64_t{1}, size)) {
      const auto step = static_cast<size_t>(i * stride * item);
      for (const auto j : c10::irange(known)) {
        const ByteRange first = runs[j];
        runs.push_back({first.begin + step, first.end + step});
      }
    }
  }
  return runs;
}

}  // namespace remat
