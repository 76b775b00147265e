// SPDX-License-Identifier: BSD-3-Clause

#include "autocast_epoch.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace remat {

bool AutocastEpoch::is_warm() {
  if (!at::autocast::is_autocast_cache_enabled()) return false;
  for (const auto device : {c10::kCPU, c10::kCUDA}) {
    if (!at::autocast::is_autocast_enabled(device)) continue;
    if (!weight_.defined() || weight_.device().type() != device)
      weight_ = at::zeros({1}, at::device(device).dtype(c10::kFloat)).requires_grad_();
    at::Tensor cast =
        at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), weight_, device);
    const bool is_same = cast.is_same(cast_);
    cast_ = std::move(cast);
    return is_same;
  }
  return false;
}

}  // namespace remat
