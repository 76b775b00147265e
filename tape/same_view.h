// SPDX-License-Identifier: BSD-3-Clause

// Views that change nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <remat/tape/op_call.h>
#include <remat/tape/tensor_layout.h>

namespace remat {

/// The tensor of which `call` makes a view; undefined if that is not its first argument.
inline at::Tensor viewed_by(const OpCall& call) {
  const bool has_one = call.info().argument_count() > 0 && call.argument(0).isTensor();
  return has_one ? call.argument(0).toTensor() : at::Tensor();
}

/// True if `result`, a view of `of`, shows it as it is: see Note [Views that nobody uses].
inline bool is_same_view(const at::Tensor& of, const c10::IValue& result) {
  if (!of.defined() || !result.isTensor()) return false;
  const at::Tensor& view = result.toTensor();
  return view.defined() && has_layout(of) && has_layout(view) && view.sizes() == of.sizes() &&
         view.strides() == of.strides() && view.storage_offset() == of.storage_offset() &&
         view.scalar_type() == of.scalar_type() && view.is_conj() == of.is_conj() &&
         view.is_neg() == of.is_neg() && view.requires_grad() == of.requires_grad();
}

}  // namespace remat
