// SPDX-License-Identifier: BSD-3-Clause

// Errors of backward when a replay differs from the forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"
#include "support/unwound.h"

namespace remat {

/// Returns the error of backward if `change` runs between the forward of `fn` on `x`, in region
/// 'r', and the backward.
inline std::string backward_error(const std::function<at::Tensor(const at::Tensor&)>& fn,
                                  const at::Tensor& x, const std::function<void()>& change,
                                  const CheckpointOptions& options = {.name = "r"}) {
  const at::Tensor loss = checkpoint(options)(fn)(x).sum();
  change();
  return error_text([&] { loss.backward(); });
}

/// Checks that the text of an error names the region, a slot, both tensors and the likely cause.
inline void check_says(const std::string& text, const std::string& expected, const std::string& got,
                       const std::string& cause) {
  CHECK_THAT(text, ContainsSubstring("[replay] region 'r', slot ") &&
                       ContainsSubstring(on_default_device("expected " + expected)) &&
                       ContainsSubstring(on_default_device("as in the forward, got " + got)) &&
                       ContainsSubstring(cause) && ContainsSubstring("with a StateHook"));
}

}  // namespace remat
