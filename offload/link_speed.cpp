// SPDX-License-Identifier: BSD-3-Clause

#include "link_speed.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace remat::detail {

void check_link_speed(const SimLinkOptions& options, const char* where) {
  TORCH_CHECK_VALUE(std::isfinite(options.gbps) && options.gbps >= 0, where,
                    " gbps: expected 1e9 bytes a second, 0 for as fast as memory, got ",
                    options.gbps, ".");
  TORCH_CHECK_VALUE(std::isfinite(options.latency_us) && options.latency_us >= 0, where,
                    " latency_us: expected microseconds, got ", options.latency_us, ".");
}

double copy_us(const SimLinkOptions& options, size_t bytes) {
  const double bytes_per_us = options.gbps * 1e3;
  return options.latency_us + (bytes_per_us > 0 ? static_cast<double>(bytes) / bytes_per_us : 0);
}

}  // namespace remat::detail
