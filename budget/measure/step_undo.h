// SPDX-License-Identifier: BSD-3-Clause

// Undoing of ops' writes to memory that existed before the step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include <remat/tape/generator_state.h>
#include <remat/tape/op_call.h>

#include "step_listener.h"

namespace remat {

/// The destructor restores memory that is older than the listener's log to its state before ops
/// wrote it, including autograd's view of it, and restores the default generators.
class StepUndo {
 public:
  explicit StepUndo(StepListener& listener)
      : listener_(listener), generators_(read_generators({})) {}
  StepUndo(const StepUndo&) = delete;
  StepUndo& operator=(const StepUndo&) = delete;
  ~StepUndo();

  /// Call it when the op is about to write some of its arguments.
  void before_op(const OpCall& call);

 private:
  struct Written {
    c10::Storage storage;
    at::Tensor bytes;
  };

  /// A tensor's place in autograd's graph, which a write changes to a result of the write.
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
  std::vector<GeneratorState> generators_;
};

}  // namespace remat
