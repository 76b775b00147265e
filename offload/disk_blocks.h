// SPDX-License-Identifier: BSD-3-Clause

// The implementation of disk_memory(), into which tests inject other system calls.
#pragma once

#include <memory>

#include "disk_file.h"

#include <remat/offload/disk_memory.h>
#include <remat/offload/offload_memory.h>

namespace remat::detail {

/// As disk_memory(), with these system calls.
REMAT_API std::shared_ptr<OffloadMemory> disk_memory_by(const DiskMemoryOptions& options,
                                                        std::shared_ptr<DiskCalls> calls);

}  // namespace remat::detail
