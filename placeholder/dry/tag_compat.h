// SPDX-License-Identifier: BSD-3-Clause

// Op tags that not every version of LibTorch has.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

namespace remat {

/// True for ops tagged as writing results into arguments whose shape may change. Ops have this tag
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
