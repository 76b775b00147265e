// SPDX-License-Identifier: BSD-3-Clause

// What ops have written that was there before, and how to bring it back.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include <remat/tape/generator_state.h>
#include <remat/tape/op_call.h>

#include "step_listener.h"

namespace remat {

/// When it dies, memory that is older than the listener's log is again what it was when ops began
/// to write it, as autograd sees it, too; and so are the default generators.
class StepUndo {
 public:
  explicit StepUndo(StepListener& listener)
      : listener_(listener), generators_(read_generators({})) {}
  StepUndo(const StepUndo&) = delete;
  StepUndo& operator=(const StepUndo&) = delete;
  ~StepUndo();

  /// All stays as it is.
  void dismiss() { is_dismissed_ = true; }

  /// The op is about to write some of its arguments.
  void before_op(const OpCall& call);

 private:
  struct Written {
    c10::Storage storage;
    at::Tensor bytes;
  };

  /// Where a tensor came from, as autograd sees it: a write makes it a result of the write.
  struct Graph {
    at::Tensor tensor;
    torch::autograd::Edge edge;
  };

  bool is_made_in_step(const at::Tensor& wrapper) const;
  void keep(const at::Tensor& tensor);
  void keep_graph(const at::Tensor& tensor);

  StepListener& listener_;
  std::vector<Written> written_;
  std::vector<Graph> graphs_;
  bool is_dismissed_ = false;
  std::vector<GeneratorState> generators_;
};

}  // namespace remat
