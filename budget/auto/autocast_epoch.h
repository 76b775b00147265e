// SPDX-License-Identifier: BSD-3-Clause

// Detection of whether autocast's cache still holds the weights of the last step.
#pragma once

#include <ATen/core/Tensor.h>

namespace remat {

/// Note [Warm casts]: under autocast the first forward casts a function's weights; another forward
/// in the same autocast block takes the casts from autocast's cache, and so runs other ops. The
/// cache cannot be queried, but a weight of our own tells: while its cast is the same tensor, the
/// cache has not been cleared. One thread at a time.
class AutocastEpoch {
 public:
  /// True if the cache was on at the last call and has not been cleared since.
  bool is_warm();

 private:
  at::Tensor weight_;
  at::Tensor cast_;
};

}  // namespace remat
