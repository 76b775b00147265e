// SPDX-License-Identifier: BSD-3-Clause

// The device remat_meta for tests, and the text of an error.
#pragma once

#include <remat/backend/register_device.h>
#include <remat/placeholder/placeholder.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <string>
#include <utility>

/// Registers on first use.
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

template <class Fn>
std::string error_text(Fn&& fn) {
  try {
    std::forward<Fn>(fn)();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}
