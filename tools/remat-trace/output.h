// SPDX-License-Identifier: BSD-3-Clause

// Text output of remat-trace.
#pragma once

#include <ostream>

#include <remat/recording/recording.h>

#include "arguments.h"

namespace remat_trace {

void print_summary(const remat::Recording& recording, std::ostream& out);
void print_ops(const remat::Recording& recording, const Arguments& arguments, std::ostream& out);

}  // namespace remat_trace
