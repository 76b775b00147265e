// SPDX-License-Identifier: BSD-3-Clause

#include "memory_link.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "link_speed.h"
#include "storage_memory.h"

namespace remat {
namespace detail {

at::Storage MemoryLink::allocate_host(int64_t bytes, c10::Device /*device*/) {
  return allocate_pages(bytes);
}

at::Storage MemoryLink::allocate(int64_t bytes, c10::Device device) {
  return allocate_storage(bytes, device);
}

// What runs on the CPU has run when the next thing is called.
CopyEventPtr MemoryLink::computed_so_far(c10::Device /*device*/) {
  return nullptr;
}

void MemoryLink::hold_compute(const CopyEventPtr& event, c10::Device /*device*/) {
  if (event) event->wait();
}

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
  const size_t bytes = std::min(to.nbytes(), from.nbytes());
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
