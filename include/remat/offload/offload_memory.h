// SPDX-License-Identifier: BSD-3-Clause

// Where the bytes of offloaded tensors are meanwhile.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <remat/offload/copy_event.h>
#include <remat/offload/copy_link.h>
#include <remat/tape/export.h>

namespace remat {

/// A memory that is not the device's. Several engines and threads may use one at once.
class REMAT_API OffloadMemory {
 public:
  /// A piece of it. Destroyed when no copy to or from it is under way any more.
  class REMAT_API Block {
   public:
    Block() = default;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    virtual ~Block() = default;

    /// Fills it from `device`, once `after` is done. `device` must live until this is done.
    virtual CopyEventPtr write(const at::Storage& device, const CopyEventPtr& after) = 0;

    /// Fills `device` from it, once `after` is done; `device` must live until this is done, and the
    /// write must be done.
    virtual CopyEventPtr read(const at::Storage& device, const CopyEventPtr& after) = 0;
  };

  OffloadMemory() = default;
  OffloadMemory(const OffloadMemory&) = delete;
  OffloadMemory& operator=(const OffloadMemory&) = delete;
  virtual ~OffloadMemory() = default;

  /// "host memory", "disk"; for messages.
  virtual std::string name() const = 0;

  /// Null: there is no room.
  virtual std::unique_ptr<Block> take(int64_t bytes, c10::Device device) = 0;

  /// What it has taken from the system, blocks and what they have left for others.
  virtual int64_t system_bytes() const = 0;

  /// The most that it takes.
  virtual int64_t max_bytes() const { return std::numeric_limits<int64_t>::max(); }

  /// Sizes of its blocks are multiples of that many bytes, as plans count them.
  virtual int64_t block_bytes() const { return 1; }

  /// What copies between it and a device.
  virtual CopyLink& link() = 0;
};

struct HostMemoryOptions {
  /// The most that it takes from the system. What blocks leave is kept for other blocks.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  /// Null: copy_link().
  std::shared_ptr<CopyLink> link{};
};

/// Memory of the host, pinned where the device wants that.
REMAT_API std::shared_ptr<OffloadMemory> host_memory(const HostMemoryOptions& options = {});

}  // namespace remat
