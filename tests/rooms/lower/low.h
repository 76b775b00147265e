// SPDX-License-Identifier: BSD-3-Clause

// A header that includes one of a room above, and one of a module that it does not use.
#pragma once

#include <remat/other/far.h>
#include <remat/tests/high.h>

struct Twin {
  int of;
};
