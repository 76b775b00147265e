// SPDX-License-Identifier: BSD-3-Clause

// Memory that is no longer needed, some of it in use by a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <remat/offload/copy_event.h>
#include <remat/offload/offload_memory.h>

namespace remat::detail {

/// A storage and a block; either may be null.
struct Retired {
  CopyEventPtr until;  ///< The last copy that uses them
  at::Storage storage;
  std::unique_ptr<OffloadMemory::Block> block;
};

/// Objects to destroy after unlocking the mover's mutex, since destructors may run any code.
using Garbage = std::vector<Retired>;

/// Rules 6 to 8 of Note [Moving]. Guarded by the mover's mutex.
class RetiredMemory {
 public:
  RetiredMemory() = default;
  RetiredMemory(const RetiredMemory&) = delete;
  RetiredMemory& operator=(const RetiredMemory&) = delete;
  ~RetiredMemory();

  /// A storage whose allocator knows of the copy goes to `garbage` at once.
  void add(Retired retired, Garbage& garbage);

  /// Moves to `garbage` what no copy uses any more.
  void settle(Garbage& garbage);

  /// Bytes of the storages.
  int64_t storage_bytes() const;

 private:
  std::vector<Retired> all_;
};

}  // namespace remat::detail
