// SPDX-License-Identifier: BSD-3-Clause

// A point in the work of a device or of a copying thread, like a CUDA event.
#pragma once

#include <c10/core/Storage.h>

#include <memory>

#include <remat/engine/export.h>

namespace remat {

/// An operation that may still be running. Any thread.
class REMAT_API CopyEvent {
 public:
  CopyEvent() = default;
  CopyEvent(const CopyEvent&) = delete;
  CopyEvent& operator=(const CopyEvent&) = delete;
  virtual ~CopyEvent() = default;

  /// True once the operation has finished or failed. Does not wait.
  virtual bool is_done() = 0;

  /// Blocks the calling thread until the operation has finished. Rethrows its error.
  virtual void wait() = 0;

  /// `storage` is device memory that the copy reads or fills. True if the caller may release it at
  /// once, because its allocator knows of the copy and will not reuse the memory before the copy is
  /// done. False if the caller must keep the storage until the copy is done.
  virtual bool may_go(const c10::Storage& /*storage*/) { return false; }
};

/// A null pointer stands for an operation that has finished.
using CopyEventPtr = std::shared_ptr<CopyEvent>;

}  // namespace remat
