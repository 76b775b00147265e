// SPDX-License-Identifier: BSD-3-Clause

// The bits that switch interception on, and the VariableHooks that were installed before remat's.
#include <remat/engine/interception_bits.h>
#include <remat/engine/unseen.h>

namespace remat {

std::atomic<uint64_t> interception_bits{0};

const at::impl::VariableHooksInterface& libtorch_variable_hooks() {
  static const at::impl::VariableHooksInterface* const hooks = at::impl::GetVariableHooks();
  return *hooks;
}

}  // namespace remat
