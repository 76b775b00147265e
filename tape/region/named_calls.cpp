// SPDX-License-Identifier: BSD-3-Clause

// Process-wide state of named calls.
#include <remat/tape/named_calls.h>

namespace remat {

std::atomic<bool> placeholders_work{true};

}  // namespace remat
