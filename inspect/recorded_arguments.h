// SPDX-License-Identifier: BSD-3-Clause

// The arguments and results of ops in the form that a recording stores.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include <remat/recording/events.h>
#include <remat/recording/recording_writer.h>

#include "recorded_layouts.h"

namespace remat {

/// Converts for one thread.
class RecordedArguments {
 public:
  explicit RecordedArguments(RecordingWriter& writer) : writer_(writer), layouts_(writer) {}

  RecordedTensor of(const at::Tensor& tensor) { return layouts_.of(tensor); }

  /// Adds an argument to the op's tensors or to its other values.
  void add(const c10::IValue& value, OpEvent& op);

  /// Adds the tensors of an argument or a result.
  void add_tensors(const c10::IValue& value, std::vector<RecordedTensor>& to);

 private:
  void add_list(const c10::IValue& list, OpEvent& op);

  RecordingWriter& writer_;
  RecordedLayouts layouts_;
};

}  // namespace remat
