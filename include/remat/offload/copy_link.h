// SPDX-License-Identifier: BSD-3-Clause

// What moves bytes between a device and host memory, beside what is computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include <remat/offload/copy_event.h>
#include <remat/tape/export.h>

namespace remat {

/// Two queues of copies, out of a device and into it, each first in, first out. Both run beside
/// what is computed. Copies are of whole storages, of which the host's may be the larger one; both
/// must live until the copy is done: the link holds none. On any thread. "The stream" is the
/// calling thread's current stream of the device; for the CPU it is the thread.
class REMAT_API CopyLink {
 public:
  CopyLink() = default;
  CopyLink(const CopyLink&) = delete;
  CopyLink& operator=(const CopyLink&) = delete;
  virtual ~CopyLink() = default;

  /// Memory on the host that this link copies to and from.
  virtual at::Storage allocate_host(int64_t bytes, c10::Device device) = 0;

  /// Memory on the device, for the stream: that of LibTorch's allocator.
  virtual at::Storage allocate(int64_t bytes, c10::Device device);

  /// Names the stream, among those of the device.
  virtual int64_t stream(c10::Device device) = 0;

  /// The stream may use `storage`, which another stream has allocated: its memory is not used again
  /// before the stream has done what it has been given when the storage goes.
  virtual void share(const at::Storage& storage) = 0;

  /// Done when the stream has done all it has been given so far.
  virtual CopyEventPtr computed_so_far(c10::Device device) = 0;

  /// What the stream is given from now on begins when `event` is done. Throws what it failed with,
  /// where the host has to wait.
  virtual void hold_compute(const CopyEventPtr& event, c10::Device device) = 0;

  /// Copies to the host, once `after` is done.
  virtual CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                                const CopyEventPtr& after) = 0;

  /// Copies to the device, once `after` is done.
  virtual CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                               const CopyEventPtr& after) = 0;
};

/// The link of a device: for the CPU two threads that copy, for others two streams and pinned
/// memory.
REMAT_API std::shared_ptr<CopyLink> copy_link();

}  // namespace remat
