// SPDX-License-Identifier: BSD-3-Clause

// Autocast for C++; LibTorch has a guard for Python only.
#pragma once

#include <ATen/autocast_mode.h>

#include "support/default_device.h"

namespace remat::matrix {

/// Turns on autocast to bfloat16 for the default device as long as it lives.
class AutocastGuard {
 public:
  AutocastGuard() : was_enabled_(at::autocast::is_autocast_enabled(default_device().type())) {
    at::autocast::set_autocast_enabled(default_device().type(), true);
    at::autocast::set_autocast_dtype(default_device().type(), at::kBFloat16);
    at::autocast::increment_nesting();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(default_device().type(), was_enabled_);
  }

 private:
  bool was_enabled_;
};

}  // namespace remat::matrix
