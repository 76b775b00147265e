// SPDX-License-Identifier: BSD-3-Clause

// Finding an op's composite kernel under one of three keys.
#include "composite_kernel.h"

#include <c10/core/DispatchKey.h>

namespace remat {

bool run_composite(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  using c10::DispatchKey;
  for (const DispatchKey key :
       {DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeExplicitAutogradNonFunctional,
        DispatchKey::CompositeImplicitAutograd}) {
    if (!op.hasKernelForDispatchKey(key)) continue;
    op.callBoxedForDispatchKey(key, stack);
    return true;
  }
  return false;
}

}  // namespace remat
