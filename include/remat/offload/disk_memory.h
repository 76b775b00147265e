// SPDX-License-Identifier: BSD-3-Clause

// A file as the memory of an offload engine.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <remat/offload/copy_link.h>
#include <remat/offload/offload_memory.h>
#include <remat/tape/export.h>

namespace remat {

struct DiskMemoryOptions {
  /// A folder on the disk. Must be there.
  std::string directory{};
  /// The most that the file grows to. What blocks leave is kept for other blocks.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  /// Compare what is read with a sum of what was written. A difference is an error of the read.
  bool checksums = false;
  /// Between device and host: what is on its way to or from the disk is in host memory meanwhile.
  /// Null: copy_link().
  std::shared_ptr<CopyLink> link{};
};

/// A file without a name, so that none is left behind, however the process ends; past the page
/// cache where the file system allows it. One thread writes, one reads. Room that the disk has not
/// is no room, noticed when a block is taken where the file system can tell, else by the write.
/// @throws c10::ValueError if no such file can be made there, with the system's reason.
REMAT_API std::shared_ptr<OffloadMemory> disk_memory(const DiskMemoryOptions& options);

}  // namespace remat
