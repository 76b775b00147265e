// SPDX-License-Identifier: BSD-3-Clause

// Threads that replay with state of the process, one after the other.
#pragma once

#include <remat/tape/export.h>

namespace remat {

/// While alive, no other thread has a turn; a thread may have several. Waits in blocking_wait().
/// There is one turn for all generators and all user state: with one for each, two threads could
/// each hold what the other one wants.
class REMAT_API Turn {
 public:
  Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();
};

}  // namespace remat
