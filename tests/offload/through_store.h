// SPDX-License-Identifier: BSD-3-Clause

// Sends a tensor through a store and back.
#pragma once

#include <torch/torch.h>

#include "support/catch.h"

#include <remat/engine/offload_store.h>

namespace remat {

/// Returns the tensor that the store gives back; checks its layout and dtype.
inline at::Tensor through(OffloadStore& store, const at::Tensor& tensor) {
  const auto ticket = store.put(tensor);
  const at::Tensor got = ticket->get();
  CHECK(got.sizes() == tensor.sizes());
  CHECK(got.strides() == tensor.strides());
  CHECK(got.scalar_type() == tensor.scalar_type());
  // Each get() must return the same tensor.
  CHECK(at::allclose(ticket->get(), got, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true));
  return got;
}

}  // namespace remat
