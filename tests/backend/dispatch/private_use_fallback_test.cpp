// SPDX-License-Identifier: BSD-3-Clause

// Choice of the handler that an op has at PrivateUse1.
#include "backend/dispatch/private_use_fallback.h"

#include "support/placeholder_probe.h"

namespace {

TEST_CASE("Ordinary tensors at PrivateUse1 are refused", "[private_use_fallback]") {
  remat::install_private_use_fallback();
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::sin", "");
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  torch::jit::Stack stack = {at::ones({2})};
  CHECK_THROWS_WITH(op.redispatchBoxed(keys, &stack),
                    ContainsSubstring("expected a placeholder among the arguments"));
}

}  // namespace
