// SPDX-License-Identifier: BSD-3-Clause

// The time of copies on a link of a given speed.
#pragma once

#include <cstddef>

#include <remat/offload/sim_link.h>

namespace remat::detail {

/// Throws ValueError unless both numbers are finite and not below 0.
void check_link_speed(const SimLinkOptions& options, const char* where);

double copy_us(const SimLinkOptions& options, size_t bytes);

}  // namespace remat::detail
