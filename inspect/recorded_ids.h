// SPDX-License-Identifier: BSD-3-Clause

// Names, tensors and arguments in the form that a recording stores.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

namespace remat {

/// Converts for one thread, and caches the ids last given by the writer.
class RecordedIds {
 public:
  explicit RecordedIds(std::shared_ptr<RecordingWriter> writer);

  StringId text(std::string_view text) { return writer_->string(text); }
  StringId device(c10::Device device);
  StringId call(const std::string& name);

  /// The op's name, or engine_range().
  StringId op(const at::RecordFunction& op);

  /// The name of the engine's range around a node. The node has an event of its own.
  StringId engine_range() const { return engine_range_; }

  RecordedTensor tensor(const at::Tensor& tensor);

  /// Adds an argument to the op's tensors or to its other values.
  void add_argument(const c10::IValue& value, OpEvent& op);

  /// Adds the tensors of a result.
  void add_result(const c10::IValue& value, OpEvent& op);

 private:
  static constexpr size_t kMaxDims = 6;
  static constexpr size_t kCacheSize = 512;

  /// Dtype, device, number of dimensions, sizes and strides of a tensor with up to kMaxDims.
  struct LayoutKey {
    std::array<int64_t, 3 + 2 * kMaxDims> parts{};
    size_t size = 0;
    uint64_t hash = 0;
    LayoutId id = 0;  // of such tensors

    void add(int64_t part) {
      parts[size++] = part;
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15;
    }
    bool operator==(const LayoutKey& other) const {
      return hash == other.hash && size == other.size &&
             std::equal(parts.begin(), parts.begin() + size, other.parts.begin());
    }
  };

  static LayoutKey key_of(const at::TensorBase& tensor, bool plain);
  LayoutId layout(const at::TensorBase& tensor, bool plain);
  LayoutId define_layout(const at::TensorBase& tensor);
  void add_list(const c10::IValue& list, OpEvent& op);

  const std::shared_ptr<RecordingWriter> writer_;
  const StringId engine_range_;
  std::array<LayoutKey, kCacheSize> layouts_;
  std::unordered_map<const char*, StringId> schema_names_;
  std::pair<c10::Device, StringId> device_{c10::kMeta, 0};
  std::pair<std::string, StringId> call_;
};

}  // namespace remat
