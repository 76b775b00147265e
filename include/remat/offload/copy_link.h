// SPDX-License-Identifier: BSD-3-Clause

// The interface that copies bytes between a device and host memory, concurrently with compute.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include <remat/engine/export.h>
#include <remat/offload/copy_event.h>

namespace remat {

/// Two first-in, first-out queues of copies, one out of a device and one into it, which run
/// concurrently with compute. A copy moves a whole device storage; the host storage may be larger.
/// The caller must keep both storages alive until the copy is done, unless CopyEvent::may_go()
/// allows the device storage to go. Any thread. "The stream" is the calling thread's current stream
/// on the device; for the CPU it is the calling thread itself.
class REMAT_API CopyLink {
 public:
  CopyLink() = default;
  CopyLink(const CopyLink&) = delete;
  CopyLink& operator=(const CopyLink&) = delete;
  virtual ~CopyLink() = default;

  /// Allocates host memory that this link can copy to and from.
  virtual at::Storage allocate_host(int64_t bytes, c10::Device device) = 0;

  /// Allocates device memory for the stream, from LibTorch's allocator.
  virtual at::Storage allocate(int64_t bytes, c10::Device device);

  /// Number that identifies the stream on the device.
  virtual int64_t stream(c10::Device device) = 0;

  /// Lets the stream use `storage`, which another stream allocated. The memory is not reused before
  /// the stream has finished the work that was queued when the storage is released.
  virtual void share(const at::Storage& storage) = 0;

  /// An event that is done when the stream has finished the work queued so far.
  virtual CopyEventPtr computed_so_far(c10::Device device) = 0;

  /// Makes work queued on the stream from now on wait for `event`. If only the host can wait for
  /// `event`, blocks until it is done and rethrows its error.
  virtual void hold_compute(const CopyEventPtr& event, c10::Device device) = 0;

  /// Copies to the host, once `after` is done.
  virtual CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                                const CopyEventPtr& after) = 0;

  /// Copies to the device, once `after` is done.
  virtual CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                               const CopyEventPtr& after) = 0;
};

/// Makes the default link, which works for every device: by two copying threads for the CPU, and by
/// two streams and pinned memory for other devices.
REMAT_API std::shared_ptr<CopyLink> copy_link();

}  // namespace remat
