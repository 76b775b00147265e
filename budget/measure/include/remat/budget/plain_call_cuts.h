// SPDX-License-Identifier: BSD-3-Clause

// Cuts of steps that are measured or planned.
#pragma once

#include <remat/tape/cuts.h>

namespace remat {

/// Cuts for a step whose plan alone decides what is kept, not the named calls of its function.
inline Cuts plain_call_cuts() {
  Cuts cuts;
  cuts.plain_calls = true;
  return cuts;
}

/// Cuts for a step with unknown ops.
inline Cuts unknown_cuts() {
  Cuts cuts = plain_call_cuts();
  cuts.while_recorded = true;
  cuts.rest_bytes = 4096;  // Segments of less memory are not worth a cut.
  return cuts;
}

}  // namespace remat
