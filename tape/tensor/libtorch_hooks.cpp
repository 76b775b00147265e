// SPDX-License-Identifier: BSD-3-Clause

// Access to the VariableHooks that were installed before remat's.
#include <remat/tape/libtorch_hooks.h>

namespace remat {

const at::impl::VariableHooksInterface& libtorch_variable_hooks() {
  static const at::impl::VariableHooksInterface* const hooks = at::impl::GetVariableHooks();
  return *hooks;
}

}  // namespace remat
