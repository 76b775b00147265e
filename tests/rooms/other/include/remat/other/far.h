// SPDX-License-Identifier: BSD-3-Clause

// A header of a module that no other module uses.
#pragma once

struct Twin {
  int of;
};
