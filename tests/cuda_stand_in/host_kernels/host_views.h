// SPDX-License-Identifier: BSD-3-Clause

// CPU tensors that share the bytes of CUDA tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace cuda_stand_in {

/// Returns a CPU tensor on the bytes of the CUDA tensor `tensor`, with its sizes, strides and bits
/// for conjugation and negation. It owns nothing: memory that is freed and allocated again is
/// ordered by streams, as on a GPU. An undefined tensor stays undefined.
at::Tensor host_view(const at::Tensor& tensor);

/// Returns `argument` as it is passed to a CPU kernel that runs later. CUDA tensors and the CUDA
/// device become those of the host. A CPU tensor is copied, because a CUDA kernel reads it at
/// launch.
c10::IValue host_argument(const c10::IValue& argument);

/// True for a tensor whose bytes a host view can show.
bool has_host_view(const at::Tensor& tensor);

}  // namespace cuda_stand_in
