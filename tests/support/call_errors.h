// SPDX-License-Identifier: BSD-3-Clause

// Errors of a function of named calls, in the forward and where its replay makes others.
#pragma once

#include <string>

#include <remat/remat.h>

#include "support/divergence.h"
#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {

/// What the forward of `fn` in a region throws.
inline std::string forward_error(const TensorFn& fn,
                                 const CheckpointOptions& options = {.name = "r"}) {
  const at::Tensor x = step_input();
  return error_text([&] { checkpoint(options)(fn)(x); });
}

/// What backward throws if `changed` is true from the end of the forward on.
inline std::string divergence(const TensorFn& fn, bool& changed,
                              const CheckpointOptions& options = {.name = "r"}) {
  changed = false;
  return backward_error(
      fn, step_input(), [&] { changed = true; }, options);
}

}  // namespace remat
