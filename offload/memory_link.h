// SPDX-License-Identifier: BSD-3-Clause

// A link between two places in CPU memory.
#pragma once

#include "cpu_link.h"
#include "worker.h"

#include <remat/offload/sim_link.h>

namespace remat::detail {

/// Copies on two threads; each copy takes as long as on a link of that speed.
class MemoryLink final : public CpuLink {
 public:
  explicit MemoryLink(const SimLinkOptions& options) : options_(options) {}

  CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                        const CopyEventPtr& after) override;
  CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                       const CopyEventPtr& after) override;

 private:
  CopyEventPtr copy(Worker& worker, const at::Storage& to, const at::Storage& from,
                    const CopyEventPtr& after) const;

  SimLinkOptions options_;
  Worker out_;
  Worker in_;
};

}  // namespace remat::detail
