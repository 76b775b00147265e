// SPDX-License-Identifier: BSD-3-Clause

// A tensor's way into a store and back.
#pragma once

#include <torch/torch.h>

#include "support/catch.h"

#include <remat/tape/offload_store.h>

namespace remat {

/// What the store gives back, whose layout and dtype are checked.
inline at::Tensor through(OffloadStore& store, const at::Tensor& tensor) {
  const auto ticket = store.put(tensor);
  const at::Tensor got = ticket->get();
  CHECK(got.sizes() == tensor.sizes());
  CHECK(got.strides() == tensor.strides());
  CHECK(got.scalar_type() == tensor.scalar_type());
  // As often as it is asked for
  CHECK(at::allclose(ticket->get(), got, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true));
  return got;
}

}  // namespace remat
