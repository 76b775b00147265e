// SPDX-License-Identifier: BSD-3-Clause

#include "recorded_ids.h"

#include <ATen/core/List.h>

#include <c10/util/StringUtil.h>

#include <bit>
#include <string_view>

#include <remat/engine/tensor_meta.h>

namespace remat {
namespace {

constexpr std::string_view kEngineRange = "autograd::engine::evaluate_function: ";

std::string full_name(const char* name, const char* overload) {
  std::string text(name);
  if (overload && *overload) text.append(".").append(overload);
  return text;
}

bool has_plain_sizes(const at::TensorBase& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return impl->layout() == c10::kStrided && !impl->has_symbolic_sizes_strides() &&
         !impl->is_python_dispatch() && !tensor.is_nested();
}

/// Reads the address without the checks by which fake tensors and wrappers raise, because nothing
/// reads the memory.
uint64_t address_of(const at::TensorBase& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) return 0;
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return reinterpret_cast<uint64_t>(storage->_mutable_data_ptr_no_checks().get());
}

bool requires_grad(const at::TensorBase& tensor) {
  return !tensor.is_inference() && tensor.requires_grad();
}

SourcePlace place_in_python() {
  SourcePlaces* const places = SourcePlaces::of_python();
  return places ? places->here() : SourcePlace{};
}

}  // namespace

RecordedIds::RecordedIds(std::shared_ptr<RecordingWriter> writer, bool source_lines)
    : writer_(std::move(writer)),
      engine_range_(writer_->string(kEngineRange)),
      has_lines_(source_lines) {}

/// Caches ids by the addresses of the names of schemas, which are stable. The name of a range that
/// the program opened (record_function) is not cached.
StringId RecordedIds::op(const at::RecordFunction& op) {
  const auto known = schema_names_.find(op.name());
  if (known != schema_names_.end()) return known->second;
  if (std::string_view(op.name()).starts_with(kEngineRange)) return engine_range_;
  const StringId id = writer_->string(full_name(op.name(), op.overload_name()));
  if (op.operator_name()) schema_names_.emplace(op.name(), id);
  return id;
}

StringId RecordedIds::call(const std::string& name) {
  if (name != call_.first) call_ = {name, writer_->string(name)};
  return call_.second;
}

StringId RecordedIds::device(c10::Device device) {
  if (device != device_.first || device_.second == 0)
    device_ = {device, writer_->string(device.str())};
  return device_.second;
}

StringId RecordedIds::keys(const OpCall& call) {
  c10::DispatchKeySet keys;
  for_each_argument_tensor(
      call, [&](size_t, const at::Tensor& tensor) { keys = keys | tensor.key_set(); });
  keys = keys.remove(c10::DispatchKey::ADInplaceOrView) - c10::autocast_dispatch_keyset;
  if (keys == keys_.first) return keys_.second;
  std::string text;
  for (const c10::DispatchKey key : keys)
    text += c10::str(text.empty() ? "" : ", ", c10::toString(key));
  keys_ = {keys, writer_->string(text)};
  return keys_.second;
}

StringId RecordedIds::line(bool by_engine) {
  if (!has_lines_) return 0;
  if (const SourcePlace place = place_in_python(); place.code && place != backward_)
    return line_of(place, *SourcePlaces::of_python());
  if (by_engine || backward_.code) return 0;
  SourcePlaces& places = SourcePlaces::of_cpp();
  const SourcePlace place = places.here();
  return place.code ? line_of(place, places) : 0;
}

void RecordedIds::begin_backward() {
  if (has_lines_) backward_ = place_in_python();
}

StringId RecordedIds::line_of(const SourcePlace& place, SourcePlaces& places) {
  if (const auto known = lines_.find(place); known != lines_.end()) return known->second;
  // Hold no iterator into lines_ while text() runs: Python may run ops then, which add lines.
  const StringId id = writer_->string(places.text(place));
  lines_.emplace(place, id);
  return id;
}

RecordedTensor RecordedIds::tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const bool plain = has_plain_sizes(tensor);
  const LayoutId id = layout(tensor, plain);
  return {id, address_of(tensor), plain ? tensor.unsafeGetTensorImpl()->storage_offset() : 0};
}

LayoutId RecordedIds::layout(const at::TensorBase& tensor, bool plain) {
  if (plain && static_cast<size_t>(tensor.dim()) > kMaxDims) return define_layout(tensor);
  LayoutKey key = key_of(tensor, plain);
  LayoutKey& known = layouts_[(key.hash >> 32U) % kCacheSize];
  if (known.id != 0 && known == key) return known.id;
  // define_layout() may call into Python, where ops may change this cache.
  key.id = define_layout(tensor);
  known = key;
  return key.id;
}

RecordedIds::LayoutKey RecordedIds::key_of(const at::TensorBase& tensor, bool plain) {
  const c10::Device device = tensor.device();
  LayoutKey key;
  key.add(static_cast<int64_t>(tensor.scalar_type()));
  key.add((static_cast<int64_t>(device.type()) << 9) + (int64_t{device.index()} << 1) +
          (requires_grad(tensor) ? 1 : 0));
  if (!plain) return key;
  key.add(tensor.dim());
  for (const int64_t size : tensor.sizes()) key.add(size);
  for (const int64_t stride : tensor.strides()) key.add(stride);
  return key;
}

LayoutId RecordedIds::define_layout(const at::TensorBase& tensor) {
  RecordedLayout made;
  made.dtype = writer_->string(dtype_name(tensor.scalar_type()));
  made.device = writer_->string(tensor.device().str());
  made.requires_grad = requires_grad(tensor);
  if (has_plain_sizes(tensor)) {
    made.sizes = tensor.sizes().vec();
    if (!tensor.is_contiguous()) made.strides = tensor.strides().vec();
  }
  return writer_->layout(made);
}

void RecordedIds::add_argument(const c10::IValue& value, OpEvent& op) {
  if (value.isTensor()) {
    op.arguments.push_back(tensor(value.toTensor()));
  } else if (value.isInt()) {
    op.values.push_back({ValueKind::kInt, static_cast<uint64_t>(value.toInt())});
  } else if (value.isDouble()) {
    op.values.push_back({ValueKind::kDouble, std::bit_cast<uint64_t>(value.toDouble())});
  } else if (value.isBool()) {
    op.values.push_back({ValueKind::kBool, value.toBool() ? 1U : 0U});
  } else if (value.isNone()) {
    op.values.push_back({ValueKind::kNone, 0});
  } else if (value.isString()) {
    op.values.push_back({ValueKind::kText, writer_->string(value.toStringRef())});
  } else if (value.isDevice()) {
    op.values.push_back({ValueKind::kText, writer_->string(value.toDevice().str())});
  } else if (value.isList()) {
    add_list(value, op);
  } else {
    op.values.push_back({ValueKind::kOther, 0});
  }
}

void RecordedIds::add_list(const c10::IValue& list, OpEvent& op) {
  const size_t place = op.values.size();
  op.values.push_back({ValueKind::kList, 0});
  for (const c10::IValue& item : list.toListRef()) {
    if (item.isTensor()) {
      op.arguments.push_back(tensor(item.toTensor()));
    } else {
      add_argument(item, op);
    }
  }
  op.values[place].bits = op.values.size() - place - 1;
}

void RecordedIds::add_result(const c10::IValue& value, OpEvent& op) {
  if (value.isTensor()) {
    op.results.push_back(tensor(value.toTensor()));
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor() && !item.isNone()) return;
      op.results.push_back(item.isTensor() ? tensor(item.toTensor()) : RecordedTensor{});
    }
  }
}

}  // namespace remat
