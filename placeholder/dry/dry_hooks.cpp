// SPDX-License-Identifier: BSD-3-Clause

// The device hooks of remat_meta.
#include <remat/placeholder/dry_hooks.h>

#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include "dry_generator.h"

namespace remat {

DryHooks::DryHooks() : default_generator_(make_dry_generator()) {}

const at::Generator& DryHooks::getDefaultGenerator(c10::DeviceIndex /*index*/) const {
  return default_generator_;
}

at::Generator DryHooks::getNewGenerator(c10::DeviceIndex /*index*/) const {
  return make_dry_generator();
}

c10::Allocator* DryHooks::getPinnedMemoryAllocator() const {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "[register_device] pinned memory: expected a GPU, got none. "
                              "remat_meta has no transfers that would need it.");
}

void DryHooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t size_bytes) const {
  storage.set_nbytes(size_bytes);
}

}  // namespace remat
