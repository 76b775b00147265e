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
#include <vector>

#include <remat/engine/op_call.h>
#include <remat/inspect/source_places.h>
#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

namespace remat {

/// Converts for one thread, and caches the ids last given by the writer.
class RecordedIds {
 public:
  /// All ids of lines are 0 unless `source_lines`.
  RecordedIds(std::shared_ptr<RecordingWriter> writer, bool source_lines);

  StringId text(std::string_view text) { return writer_->string(text); }
  StringId device(c10::Device device);
  StringId call(const std::string& name);

  /// The dispatch keys of the tensors among the arguments, without those that all plain ones have.
  StringId keys(const OpCall& call);

  /// The op's name, or engine_range().
  StringId op(const at::RecordFunction& op);

  /// The name of the engine's range around a node. The node has an event of its own.
  StringId engine_range() const { return engine_range_; }

  /// The line that the program is at. `by_engine`: true if a backward pass seems to have called
  /// what runs now; then only a line of Python that a node called counts, and 0 means that there is
  /// none.
  StringId line(bool by_engine);

  /// Marks the begin and the end of a backward pass for line().
  void begin_backward();
  void end_backward() { backward_ = {}; }

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
