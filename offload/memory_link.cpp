// SPDX-License-Identifier: BSD-3-Clause

#include "memory_link.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "link_speed.h"
#include "storage_memory.h"

namespace remat {
namespace detail {

CopyEventPtr MemoryLink::copy_out(const at::Storage& host, const at::Storage& device,
                                  const CopyEventPtr& after) {
  return copy(out_, host, device, after);
}

CopyEventPtr MemoryLink::copy_in(const at::Storage& device, const at::Storage& host,
                                 const CopyEventPtr& after) {
  return copy(in_, device, host, after);
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
  detail::check_link_speed(options, "[sim_link]");
  return std::make_shared<detail::MemoryLink>(options);
}

}  // namespace remat
