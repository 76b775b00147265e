// SPDX-License-Identifier: BSD-3-Clause

// The guard's device check.
#include <remat/placeholder/dry_device_guard.h>

#include <c10/util/Exception.h>

namespace remat {

void DryDeviceGuard::check(c10::Device device) {
  TORCH_CHECK_VALUE(device.type() == c10::DeviceType::PrivateUse1 && device.index() <= 0,
                    "[register_device] device: expected remat_meta:0, got ", device,
                    ". There is one device of this kind.");
}

}  // namespace remat
