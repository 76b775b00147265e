// SPDX-License-Identifier: BSD-3-Clause

// What the cuts of measured and of planned steps have in common.
#pragma once

#include <remat/tape/cuts.h>

namespace remat {

/// Of a step for which a plan says what is kept, and no named call of its function does.
inline Cuts plain_call_cuts() {
  Cuts cuts;
  cuts.plain_calls = true;
  return cuts;
}

}  // namespace remat
