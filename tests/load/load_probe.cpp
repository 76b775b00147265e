// SPDX-License-Identifier: BSD-3-Clause

// Loads remat and succeeds.
#include "engine/support/torch_version.h"

// Calls a function, because linkers drop a library of which nothing is used.
int main() {
  return remat::detail::compiled_torch_version().empty() ? 1 : 0;
}
