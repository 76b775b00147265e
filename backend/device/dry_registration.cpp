// SPDX-License-Identifier: BSD-3-Clause

// Registering kernels by name, and the allocator.
#include "dry_registration.h"

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <torch/library.h>

#include <remat/placeholder/dry_device.h>

#include "kept_library.h"

namespace remat {

void register_dry_factories() {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, dry_allocator());
  c10::SetStorageImplCreate(c10::DeviceType::PrivateUse1, &make_dry_storage_impl);
  torch::Library& library = keep_library("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library.impl("empty.memory_format", &dry_empty);
  library.impl("empty_strided", &dry_empty_strided);
  library.impl("_has_compatible_shallow_copy_type", &has_dry_compatible_shallow_copy_type);
}

}  // namespace remat
