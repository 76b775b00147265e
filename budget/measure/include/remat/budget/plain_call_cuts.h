// SPDX-License-Identifier: BSD-3-Clause

// The common part of the cuts of measured and of planned steps.
#pragma once

#include <remat/tape/cuts.h>

namespace remat {

/// Cuts for a step whose plan alone decides what is kept, not the named calls of its function.
inline Cuts plain_call_cuts() {
  Cuts cuts;
  cuts.plain_calls = true;
  return cuts;
}

}  // namespace remat
