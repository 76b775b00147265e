// SPDX-License-Identifier: BSD-3-Clause

// Which process made something: a forked one has neither its threads nor its share of a file.
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace remat::detail {

class MadeInProcess {
 public:
  /// True in a process that was forked since.
  bool is_forked() const { return process_ != getpid(); }

 private:
  pid_t process_ = getpid();
};

}  // namespace remat::detail
