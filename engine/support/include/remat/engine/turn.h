// SPDX-License-Identifier: BSD-3-Clause

// A process-wide turn for threads whose replays use shared state.
#pragma once

#include <remat/engine/export.h>

namespace remat {

/// While alive, no other thread has a turn; one thread may hold several. Waits in blocking_wait().
/// A single turn covers all generators and all user state: with one turn each, two threads could
/// deadlock.
class REMAT_API Turn {
 public:
  Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();
};

}  // namespace remat
