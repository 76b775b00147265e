// SPDX-License-Identifier: BSD-3-Clause

// The numbers of tensors' layouts in a recording.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

namespace remat {

/// Of one thread: what it has asked the writer for lately.
class RecordedLayouts {
 public:
  explicit RecordedLayouts(RecordingWriter& writer) : writer_(writer) {}

  RecordedTensor of(const at::Tensor& tensor);

 private:
  /// Dtype, device, number of dimensions, sizes and strides of a tensor, in one stretch of numbers.
  using Key = std::vector<int64_t>;
  struct Known {
    Key key;
    LayoutId id = 0;
  };
  static constexpr size_t kSize = 512;

  void set_key(const at::TensorBase& tensor);
  LayoutId ask(const at::TensorBase& tensor);

  RecordingWriter& writer_;
  Key key_;  // of the tensor that is looked for
  std::array<Known, kSize> known_;
};

}  // namespace remat
