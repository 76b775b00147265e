// SPDX-License-Identifier: BSD-3-Clause

// Ids of tensor layouts in a recording.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

namespace remat {

/// A cache, for one thread, of the layouts last sent to the writer.
class RecordedLayouts {
 public:
  explicit RecordedLayouts(RecordingWriter& writer) : writer_(writer) {}

  RecordedTensor of(const at::Tensor& tensor);

 private:
  static constexpr size_t kMostDims = 6;
  static constexpr size_t kSize = 512;

  /// Dtype, device, number of dimensions, sizes and strides of a tensor with up to kMostDims.
  struct Key {
    std::array<int64_t, 3 + 2 * kMostDims> parts{};
    size_t size = 0;
    uint64_t hash = 0;

    void add(int64_t part) {
      parts[size++] = part;
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15;
    }
    bool operator==(const Key& other) const {
      return hash == other.hash && size == other.size &&
             std::equal(parts.begin(), parts.begin() + size, other.parts.begin());
    }
  };
  struct Known {
    Key key;
    LayoutId id = 0;
  };

  static Key key_of(const at::TensorBase& tensor, bool plain);
  LayoutId id_of(const at::TensorBase& tensor, bool plain);
  LayoutId ask(const at::TensorBase& tensor);

  RecordingWriter& writer_;
  std::array<Known, kSize> known_;
};

}  // namespace remat
