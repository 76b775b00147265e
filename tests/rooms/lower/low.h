// SPDX-License-Identifier: BSD-3-Clause

// Looks up, and at a module that it does not use.
#pragma once

#include <remat/other/far.h>
#include <remat/tests/high.h>

struct Twin {
  int of;
};
