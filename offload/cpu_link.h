// SPDX-License-Identifier: BSD-3-Clause

// The common part of links between two places in CPU memory.
#pragma once

#include "storage_memory.h"

#include <c10/util/Exception.h>

#include <remat/offload/copy_link.h>

namespace remat::detail {

/// Other devices are refused where they first appear, in put(). The stream is the thread, whose
/// work has always finished when the next function is called.
class CpuLink : public CopyLink {
 public:
  at::Storage allocate_host(int64_t bytes, c10::Device device) final {
    check_is_cpu(device);
    return allocate_pages(bytes);
  }
  int64_t stream(c10::Device /*device*/) final { return 0; }
  void share(const at::Storage& /*storage*/) final {}
  CopyEventPtr computed_so_far(c10::Device device) final {
    check_is_cpu(device);
    return nullptr;
  }
  void hold_compute(const CopyEventPtr& event, c10::Device /*device*/) final {
    if (event) event->wait();
  }

 private:
  static void check_is_cpu(c10::Device device) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        device.is_cpu(), "[sim_link] device: expected memory of the CPU, got ", device,
        ". A link of a set speed copies by the CPU. Leave the link out, or let the store's device "
        "be cpu.");
  }
};

}  // namespace remat::detail
