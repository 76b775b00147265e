// SPDX-License-Identifier: BSD-3-Clause

// What named calls of a thread share.
#include <remat/tape/named_calls.h>

namespace remat {

std::atomic<bool> placeholders_work{true};

}  // namespace remat
