// SPDX-License-Identifier: BSD-3-Clause

// What links between two places in the memory of the CPU have in common.
#pragma once

#include "storage_memory.h"

#include <remat/offload/copy_link.h>

namespace remat::detail {

/// The stream is the thread: what runs has run when the next thing is called.
class CpuLink : public CopyLink {
 public:
  at::Storage allocate_host(int64_t bytes, c10::Device /*device*/) final {
    return allocate_pages(bytes);
  }
  int64_t stream(c10::Device /*device*/) final { return 0; }
  void share(const at::Storage& /*storage*/) final {}
  CopyEventPtr computed_so_far(c10::Device /*device*/) final { return nullptr; }
  void hold_compute(const CopyEventPtr& event, c10::Device /*device*/) final {
    if (event) event->wait();
  }
};

}  // namespace remat::detail
