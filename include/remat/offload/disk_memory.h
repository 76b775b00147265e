// SPDX-License-Identifier: BSD-3-Clause

// A file as the memory of an offload engine.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <remat/engine/export.h>
#include <remat/offload/copy_link.h>
#include <remat/offload/offload_memory.h>

namespace remat {

struct DiskMemoryOptions {
  /// An existing folder on the disk.
  std::string directory{};
  /// Maximum size of the file. Space of freed blocks is kept for other blocks.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  /// Compares checksums of the bytes written and read. A mismatch is an error of the read.
  bool checksums = false;
  /// Link between device and host, because bytes on their way to or from the disk pass through host
  /// memory. Null: copy_link().
  std::shared_ptr<CopyLink> link{};
};

/// Memory in an unnamed file, so that no file is left however the process ends. Bypasses the page
/// cache where the file system allows it. One thread writes, one reads. A full disk counts as a
/// full memory: take() notices it if the file system can reserve space; otherwise the write of a
/// block fails.
/// @throws c10::ValueError with the system's reason if the file cannot be created in `directory`.
REMAT_API std::shared_ptr<OffloadMemory> disk_memory(const DiskMemoryOptions& options);

}  // namespace remat
