// SPDX-License-Identifier: BSD-3-Clause

// Tags of ops that not every version of LibTorch has.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

namespace remat {

/// Tagged as what writes its results into arguments that it may give another shape, which ops are
/// since 2.11.
template <class Tag = at::Tag>
bool is_out_variant(const c10::OperatorHandle& op) {
  if constexpr (requires { Tag::out_variant; }) {
    return op.hasTag(Tag::out_variant);
  } else {
    return false;
  }
}

}  // namespace remat
