// SPDX-License-Identifier: BSD-3-Clause

// The link to a device with streams.
#pragma once

#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <utility>

#include <remat/offload/copy_link.h>

namespace remat::detail {

/// Copies on two streams per device, used for nothing else, and pinned memory. Works through
/// LibTorch's guards, for every device that has them.
class AcceleratorLink final : public CopyLink {
 public:
  at::Storage allocate_host(int64_t bytes, c10::Device device) override;
  int64_t stream(c10::Device device) override;
  void share(const at::Storage& storage) override;
  CopyEventPtr computed_so_far(c10::Device device) override;
  void hold_compute(const CopyEventPtr& event, c10::Device device) override;
  CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                        const CopyEventPtr& after) override;
  CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                       const CopyEventPtr& after) override;

 private:
  using Streams = std::pair<c10::Stream, c10::Stream>;  // out of the device and into it

  const Streams& streams_of(c10::Device device);

  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Streams> streams_;
};

}  // namespace remat::detail
