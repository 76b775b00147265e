// SPDX-License-Identifier: BSD-3-Clause

#include "place_rates.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "storage_memory.h"

namespace remat::detail {
namespace {

constexpr int64_t kLargeBytes = int64_t{32} << 20;
constexpr int64_t kSmallShare = 64;
constexpr int kTimes = 4;  // the first run allocates the memory

double us_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

void wait_for(const CopyEventPtr& event) {
  if (event) event->wait();
}

/// Microseconds of the fastest copy out and of the fastest copy in.
std::pair<double, double> fastest(OffloadMemory& memory, c10::Device device, int64_t bytes) {
  double out_us = std::numeric_limits<double>::max();
  double in_us = out_us;
  CopyLink& link = memory.link();
  const at::Storage storage = link.allocate(bytes, device);
  if (device.is_cpu()) std::memset(storage.mutable_data(), 0, storage.nbytes());
  const auto block = memory.take(bytes, device);
  TORCH_CHECK(block, "[offload] terms: expected ", memory.name(), " to have room for ", bytes,
              " bytes, got none. Give it more room, or measure before it is full.");
  for (int i = 0; i < kTimes; ++i) {
    wait_for(link.computed_so_far(device));
    auto begin = std::chrono::steady_clock::now();
    wait_for(block->write(storage, link.computed_so_far(device)));
    out_us = std::min(out_us, us_since(begin));
    begin = std::chrono::steady_clock::now();
    wait_for(block->read(storage, link.computed_so_far(device)));
    in_us = std::min(in_us, us_since(begin));
  }
  return {out_us, in_us};
}

double gbps(int64_t bytes, double us) {
  return static_cast<double>(bytes) / (std::max(us, 1e-3) * 1e3);
}

}  // namespace

OffloadPlace measured_place(OffloadMemory& memory, c10::Device device) {
  // A memory takes whole pages.
  const int64_t large = std::min(kLargeBytes, memory.max_bytes() / kPageBytes * kPageBytes);
  TORCH_CHECK_VALUE(large > 0, "[offload] terms: expected a memory of a page (", kPageBytes,
                    " bytes) or more, got ", memory.name(), " of ", memory.max_bytes(),
                    " bytes. Leave it out.");
  const int64_t small = std::max<int64_t>(1, large / kSmallShare);
  const auto [out_us, in_us] = fastest(memory, device, large);
  const auto [small_out_us, small_in_us] = fastest(memory, device, small);
  OffloadPlace place;
  place.name = memory.name();
  place.max_bytes = memory.max_bytes();
  place.block_bytes = memory.block_bytes();
  // If noise exceeds the difference, the whole time counts as bandwidth.
  const auto rate = [&](double us, double small_us) {
    return gbps(us > small_us ? large - small : large, us > small_us ? us - small_us : us);
  };
  place.out_gbps = rate(out_us, small_out_us);
  place.in_gbps = rate(in_us, small_in_us);
  const double small_kb = static_cast<double>(small) / 1e3;
  place.latency_us = std::max(
      {0.0, small_out_us - small_kb / place.out_gbps, small_in_us - small_kb / place.in_gbps});
  return place;
}

}  // namespace remat::detail
