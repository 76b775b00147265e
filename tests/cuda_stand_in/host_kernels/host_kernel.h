// SPDX-License-Identifier: BSD-3-Clause

// The boxed kernel that stands at the CUDA key of an op.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

#include "host_computation.h"
#include "op_choice.h"

namespace cuda_stand_in {

/// Calls the CUDA kernel, then queues the host's computation of the same op. The CUDA kernel checks
/// arguments, allocates and draws from the generator; the device kernels that it launches do
/// nothing. Ops that it calls are not computed, because the host's computation includes them.
class HostKernel final : public c10::OperatorKernel {
 public:
  HostKernel(const c10::OperatorHandle& op, Kind kind);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  bool is_left_to_cuda(const torch::jit::Stack& arguments) const;
  void call_cuda(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) const;
  void run_queued(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  const torch::jit::Stack& arguments, torch::jit::Stack* stack) const;

  const Kind kind_;
  const bool is_random_;
  const bool is_copy_;
  const HostComputation compute_;
  std::optional<c10::SafeKernelFunction> cuda_kernel_;
};

}  // namespace cuda_stand_in
