// SPDX-License-Identifier: BSD-3-Clause

// The interface of memories that hold the bytes of offloaded tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <remat/engine/export.h>
#include <remat/offload/copy_event.h>
#include <remat/offload/copy_link.h>

namespace remat {

/// A memory outside of the device. Several engines and threads may use one at once.
class REMAT_API OffloadMemory {
 public:
  /// A block of the memory. Destroyed only when no copy to or from it is in flight.
  class REMAT_API Block {
   public:
    Block() = default;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    virtual ~Block() = default;

    /// Copies from `device` into the block, once `after` is done. `device` must live until the
    /// returned event is done.
    virtual CopyEventPtr write(const at::Storage& device, const CopyEventPtr& after) = 0;

    /// Copies from the block to `device`, once `after` is done. `device` must live until the
    /// returned event is done. The block's write must have finished.
    virtual CopyEventPtr read(const at::Storage& device, const CopyEventPtr& after) = 0;
  };

  OffloadMemory() = default;
  OffloadMemory(const OffloadMemory&) = delete;
  OffloadMemory& operator=(const OffloadMemory&) = delete;
  virtual ~OffloadMemory() = default;

  /// Name for messages: "host memory", "disk".
  virtual std::string name() const = 0;

  /// Allocates a block for a storage of `device`; null if there is no room.
  virtual std::unique_ptr<Block> take(int64_t bytes, c10::Device device) = 0;

  /// Bytes that this memory holds from the system, both in use as blocks and free for reuse.
  virtual int64_t system_bytes() const = 0;

  /// Limit on system_bytes().
  virtual int64_t max_bytes() const { return std::numeric_limits<int64_t>::max(); }

  /// Plans round the size of each block up to a multiple of this many bytes.
  virtual int64_t block_bytes() const { return 1; }

  /// The link that copies between this memory and a device.
  virtual CopyLink& link() = 0;
};

struct HostMemoryOptions {
  /// Limit on the bytes taken from the system. Memory of freed blocks is kept for other blocks.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  /// Link between a device and the memory. Null: copy_link().
  std::shared_ptr<CopyLink> link{};
};

/// Host memory, pinned if the device requires that.
REMAT_API std::shared_ptr<OffloadMemory> host_memory(const HostMemoryOptions& options = {});

}  // namespace remat
