// SPDX-License-Identifier: BSD-3-Clause

// The device remat_meta, on which whole models run without memory.
#pragma once

#include <remat/engine/export.h>

namespace remat {

/// Names the device PrivateUse1 "remat_meta" for the rest of the process; a second call does
/// nothing. From then on `torch::Device("remat_meta")` is one device, of index 0, whose tensors
/// have shapes, strides and dtypes but no data. Forward, backward and optimizer steps run on it
/// through LibTorch's Meta kernels and a few remat kernels. `.to("remat_meta")` drops the data of a
/// tensor; copying back throws, as does any op that needs values (`item`, `nonzero`, printing).
///
/// Neither loading remat nor its other functions call this, since it changes the process: see Note
/// [The accelerator] in remat/placeholder/dry_device.h. Call it before several threads use tensors,
/// because registration is not atomic with respect to ops that run meanwhile. Otherwise any thread
/// may call it.
///
/// Throws NotImplementedError, and changes nothing, if PrivateUse1 already has a name, hooks, a
/// device guard or a backend fallback; the message says which, and whose. Throws the same error if
/// LibTorch has another accelerator with a device, such as CUDA with a GPU. Then hide the GPU from
/// the process (`CUDA_VISIBLE_DEVICES=` in its environment). This check counts devices and creates
/// no context on them. A program that loads LibTorch's CUDA libraries itself must load them before
/// this call.
REMAT_API void register_device();

}  // namespace remat
