// SPDX-License-Identifier: BSD-3-Clause

// The device remat_meta, for tests.
#pragma once

#include <remat/backend/register_device.h>
#include <remat/placeholder/placeholder.h>

#include "support/catch.h"
#include "support/error_text.h"

#include <torch/torch.h>

/// Returns the device, which is registered on first use.
inline at::Device dry_device() {
  remat::register_device();
  return at::Device("remat_meta");
}

inline at::TensorOptions dry_options() {
  return at::TensorOptions(dry_device());
}

inline bool is_dry(const at::Tensor& tensor) {
  return remat::is_placeholder(tensor) && tensor.device().str() == "remat_meta:0";
}
