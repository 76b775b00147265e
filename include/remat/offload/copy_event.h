// SPDX-License-Identifier: BSD-3-Clause

// A moment in the work of a device or of a copying thread, as a CUDA event.
#pragma once

#include <c10/core/Storage.h>

#include <memory>

#include <remat/tape/export.h>

namespace remat {

/// Something that will be done. On any thread.
class REMAT_API CopyEvent {
 public:
  CopyEvent() = default;
  CopyEvent(const CopyEvent&) = delete;
  CopyEvent& operator=(const CopyEvent&) = delete;
  virtual ~CopyEvent() = default;

  /// True once it is done, or has failed. Does not wait.
  virtual bool is_done() = 0;

  /// Waits for it on the calling thread. Throws what it failed with.
  virtual void wait() = 0;

  /// True if the caller may let go of `storage`, memory of a device that the copy reads or fills:
  /// the allocator has been told, and does not use the memory again before this is done. False if
  /// the caller has to keep the storage until then.
  virtual bool may_go(const c10::Storage& /*storage*/) { return false; }
};

/// Null: done.
using CopyEventPtr = std::shared_ptr<CopyEvent>;

}  // namespace remat
