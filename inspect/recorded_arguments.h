// SPDX-License-Identifier: BSD-3-Clause

// What ops are given and return, as a recording has it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

#include "recorded_layouts.h"

namespace remat {

/// Of one thread.
class RecordedArguments {
 public:
  explicit RecordedArguments(RecordingWriter& writer) : writer_(writer), layouts_(writer) {}

  RecordedTensor of(const at::Tensor& tensor) { return layouts_.of(tensor); }

  /// An argument of the op, to its tensors or to its other values.
  void add(const c10::IValue& value, OpEvent& op);

  /// The tensors of an argument or a result.
  void add_tensors(const c10::IValue& value, std::vector<RecordedTensor>& to);

 private:
  void add_list(const c10::IValue& list, OpEvent& op);

  RecordingWriter& writer_;
  RecordedLayouts layouts_;
};

}  // namespace remat
