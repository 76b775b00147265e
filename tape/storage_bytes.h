// SPDX-License-Identifier: BSD-3-Clause

// Storages as plain bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

namespace remat {

/// A tensor of uint8 with a copy of all bytes of `storage`; nobody sees the ops.
at::Tensor clone_bytes(const c10::Storage& storage, c10::Device device);

/// `like` in another storage, outside any graph, with a version of its own.
at::Tensor view_storage(const c10::Storage& storage, const at::Tensor& like);

}  // namespace remat
