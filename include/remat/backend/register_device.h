// SPDX-License-Identifier: BSD-3-Clause

// The device remat_meta: whole models without memory.
#pragma once

#include <remat/tape/export.h>

namespace remat {

/// Gives the device PrivateUse1 the name "remat_meta", for good; a second call does nothing. From
/// then on `torch::Device("remat_meta")` names one device, of index 0, whose tensors have shapes,
/// strides and dtypes but no data. Forward, backward and optimizer steps run on it by LibTorch's
/// Meta kernels and a few of remat's; `.to("remat_meta")` drops the data of a tensor, the way back
/// throws, and so does all that needs values (`item`, `nonzero`, printing).
///
/// Never called on load or by other calls of remat: it changes the process, see
/// Note [The accelerator] in placeholder/dry_hooks.h. Call it before tensors are used by several
/// threads: registration is not atomic with ops that run meanwhile. Any thread otherwise.
///
/// Throws NotImplementedError, and changes nothing, if PrivateUse1 has a name, hooks, a device
/// guard or a backend fallback of somebody else; the message says which and whose. It throws the
/// same error where LibTorch has another accelerator with a device, such as CUDA with a GPU: hide
/// the GPU from the process (`CUDA_VISIBLE_DEVICES=` in its environment). The question counts the
/// devices and makes no context on them. A program that loads LibTorch's CUDA libraries itself
/// loads them before this call.
REMAT_API void register_device();

}  // namespace remat
