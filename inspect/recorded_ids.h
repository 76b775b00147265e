// SPDX-License-Identifier: BSD-3-Clause

// Names, source lines, tensors and arguments in the form that a recording stores.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include <remat/engine/op_call.h>
#include <remat/inspect/source_places.h>
#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

namespace remat {

/// Converts what one thread records, and caches the ids that the writer last returned.
class RecordedIds {
 public:
  /// Without `source_lines`, line() always returns 0.
  RecordedIds(std::shared_ptr<RecordingWriter> writer, bool source_lines);

  StringId text(std::string_view text) { return writer_->string(text); }
  StringId device(c10::Device device);
  StringId call(const std::string& name);

  /// The dispatch keys of the argument tensors, without ADInplaceOrView and the autocast keys.
  StringId keys(const OpCall& call);

  /// The id of the op's name; engine_range() if `op` is not an op but the engine's range.
  StringId op(const at::RecordFunction& op);

  /// The id of the name of the range that autograd's engine reports around each node. The node
  /// itself is recorded as a NodeEvent.
  StringId engine_range() const { return engine_range_; }

  /// The line of the program that runs now; 0 if unknown. `by_engine`: true if a backward pass or a
  /// tape seems to have called the op; the result is then a line of Python that a node runs, or 0.
  StringId line(bool by_engine);

  /// Marks the begin and the end of a backward pass for line().
  void begin_backward();
  void end_backward() { backward_ = {}; }

  RecordedTensor tensor(const at::Tensor& tensor);

  /// Adds an argument to the op's tensors or to its other values.
  void add_argument(const c10::IValue& value, OpEvent& op);

  void add_result(const c10::IValue& value, OpEvent& op);

 private:
  static constexpr size_t kMaxDims = 6;
  static constexpr size_t kCacheSize = 512;

  /// Dtype, device, requires_grad, and the sizes and strides of up to kMaxDims dimensions.
  struct LayoutKey {
    std::array<int64_t, 3 + 2 * kMaxDims> parts{};
    size_t size = 0;
    uint64_t hash = 0;
    LayoutId id = 0;  // 0: this entry of the cache is empty

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
  StringId line_of(const SourcePlace& place, SourcePlaces& places);

  const std::shared_ptr<RecordingWriter> writer_;
  const StringId engine_range_;
  const bool has_lines_;
  std::array<LayoutKey, kCacheSize> layouts_;
  std::unordered_map<const char*, StringId> schema_names_;
  std::pair<c10::Device, StringId> device_{c10::kMeta, 0};
  std::pair<std::string, StringId> call_;
  std::pair<c10::DispatchKeySet, StringId> keys_;
  SourcePlace backward_;  // the Python line that started the current backward pass
  std::map<SourcePlace, StringId> lines_;
};

}  // namespace remat
