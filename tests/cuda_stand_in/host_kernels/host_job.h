// SPDX-License-Identifier: BSD-3-Clause

// One op that waits in a stream to be computed on the host.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <vector>

#include "host_computation.h"

namespace cuda_stand_in {

struct HostJob {
  c10::OperatorHandle op;
  HostComputation compute = nullptr;
  torch::jit::Stack arguments;      // tensors are on the host
  std::vector<at::Tensor> results;  // host views, undefined where the op writes its arguments
  at::Generator generator;          // used by this job alone; undefined if nothing is drawn
};

/// Puts `job` on the current stream of the current device.
void enqueue(std::unique_ptr<HostJob> job);

/// Counts an incorrect result of `op`, with the reason, as a launch that nobody computed.
void count_garbage(const c10::OperatorHandle& op, const std::string& reason);

}  // namespace cuda_stand_in
