// SPDX-License-Identifier: BSD-3-Clause

// A moment in the work of a device or of a copying thread, as a CUDA event.
#pragma once

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
};

/// Null: done.
using CopyEventPtr = std::shared_ptr<CopyEvent>;

}  // namespace remat
