// SPDX-License-Identifier: BSD-3-Clause

// The bits that switch interception on.
#include <remat/tape/interception_bits.h>

namespace remat {

std::atomic<uint64_t> interception_bits{0};

}  // namespace remat
