// SPDX-License-Identifier: BSD-3-Clause

// A process-wide turn for threads whose replays use shared state.
#pragma once

#include <remat/engine/export.h>

namespace remat {

/// While a Turn lives, no other thread has one; a thread may hold several. The constructor waits in
/// blocking_wait(). A single turn covers all generators and all user state, because two threads
/// could deadlock if each generator and each state had a Turn of its own.
class REMAT_API Turn {
 public:
  Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();
};

}  // namespace remat
