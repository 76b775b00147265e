// SPDX-License-Identifier: BSD-3-Clause

// A link between two places in CPU memory.
#pragma once

#include "worker.h"

#include <remat/offload/sim_link.h>

namespace remat::detail {

/// Copies on two threads; each copy takes as long as on a link of that speed. The stream is the
/// calling thread, whose work has always finished when the next function is called. Other devices
/// are refused where they first appear, in put().
class MemoryLink final : public CopyLink {
 public:
  explicit MemoryLink(const SimLinkOptions& options) : options_(options) {}

  at::Storage allocate_host(int64_t bytes, c10::Device device) override;
  int64_t stream(c10::Device /*device*/) override { return 0; }
  void share(const at::Storage& /*storage*/) override {}
  CopyEventPtr computed_so_far(c10::Device device) override;
  void hold_compute(const CopyEventPtr& event, c10::Device /*device*/) override {
    if (event) event->wait();
  }
  CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                        const CopyEventPtr& after) override {
    return copy(out_, host, device, after);
  }
  CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                       const CopyEventPtr& after) override {
    return copy(in_, device, host, after);
  }

 private:
  CopyEventPtr copy(Worker& worker, const at::Storage& to, const at::Storage& from,
                    const CopyEventPtr& after) const;

  SimLinkOptions options_;
  Worker out_;
  Worker in_;
};

}  // namespace remat::detail
