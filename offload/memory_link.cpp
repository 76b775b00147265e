// SPDX-License-Identifier: BSD-3-Clause

#include "memory_link.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "storage_memory.h"

namespace remat {
namespace detail {
namespace {

void check_is_cpu(c10::Device device) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      device.is_cpu(), "[sim_link] device: expected memory of the CPU, got ", device,
      ". A link of a set speed copies by the CPU. Leave the link out, or let the store's device "
      "be cpu.");
}

double copy_us(const SimLinkOptions& options, size_t bytes) {
  const double bytes_per_us = options.gbps * 1e3;
  return options.latency_us + (bytes_per_us > 0 ? static_cast<double>(bytes) / bytes_per_us : 0);
}

}  // namespace

at::Storage MemoryLink::allocate_host(int64_t bytes, c10::Device device) {
  check_is_cpu(device);
  return allocate_pages(bytes);
}

CopyEventPtr MemoryLink::computed_so_far(c10::Device device) {
  check_is_cpu(device);
  return nullptr;
}

CopyEventPtr MemoryLink::copy(Worker& worker, const at::Storage& to, const at::Storage& from,
                              const CopyEventPtr& after) const {
  void* const target = to.mutable_data();
  const void* const source = from.data();
  const size_t bytes = copied_bytes(to, from);
  const std::chrono::duration<double, std::micro> time(copy_us(options_, bytes));
  return worker.run(
      [target, source, bytes, time] {
        const auto end = std::chrono::steady_clock::now() + time;
        std::memcpy(target, source, bytes);
        std::this_thread::sleep_until(end);
      },
      after);
}

}  // namespace detail

std::shared_ptr<CopyLink> sim_link(const SimLinkOptions& options) {
  TORCH_CHECK_VALUE(std::isfinite(options.gbps) && options.gbps >= 0,
                    "[sim_link] gbps: expected 1e9 bytes a second, 0 for as fast as memory, got ",
                    options.gbps, ".");
  TORCH_CHECK_VALUE(std::isfinite(options.latency_us) && options.latency_us >= 0,
                    "[sim_link] latency_us: expected microseconds, got ", options.latency_us, ".");
  return std::make_shared<detail::MemoryLink>(options);
}

}  // namespace remat
