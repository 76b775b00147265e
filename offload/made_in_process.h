// SPDX-License-Identifier: BSD-3-Clause

// Detects use after a fork: a forked process has neither the threads of its parent nor its own part
// of a shared file.
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace remat::detail {

class MadeInProcess {
 public:
  /// True in a process that was forked after construction.
  bool is_forked() const { return process_ != getpid(); }

 private:
  pid_t process_ = getpid();
};

}  // namespace remat::detail
