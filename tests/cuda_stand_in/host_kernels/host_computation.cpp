// SPDX-License-Identifier: BSD-3-Clause

// Finds what computes an op on the host.
#include "host_computation.h"

namespace cuda_stand_in {
namespace {

void call_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                     const at::Generator& /*generator*/) {
  op.callBoxed(&stack);
}

}  // namespace

HostComputation host_computation(const c10::OperatorHandle& op) {
  if (const HostComputation special = special_computation(op.operator_name())) return special;
  return op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) ? call_cpu_kernel : nullptr;
}

}  // namespace cuda_stand_in
