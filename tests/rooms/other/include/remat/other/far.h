// SPDX-License-Identifier: BSD-3-Clause

// Of a module that nobody uses.
#pragma once

struct Twin {
  int of;
};
