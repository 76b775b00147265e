// SPDX-License-Identifier: BSD-3-Clause

// Errors of named calls, in the forward and where the replay makes other calls.
#pragma once

#include <string>

#include <remat/remat.h>

#include "support/divergence.h"
#include "support/named_step.h"
#include "support/unwound.h"

namespace remat {

/// Returns the error that the forward of `fn` in a region raises.
inline std::string forward_error(const TensorFn& fn,
                                 const CheckpointOptions& options = {.name = "r"}) {
  const at::Tensor x = step_input();
  return error_text([&] { checkpoint(options)(fn)(x); });
}

/// Returns the error of backward if `changed`, which `fn` reads, becomes true after the forward.
inline std::string divergence(const TensorFn& fn, bool& changed,
                              const CheckpointOptions& options = {.name = "r"}) {
  changed = false;
  return backward_error(
      fn, step_input(), [&] { changed = true; }, options);
}

}  // namespace remat
