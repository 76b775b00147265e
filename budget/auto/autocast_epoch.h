// SPDX-License-Identifier: BSD-3-Clause

// Whether autocast's cache has the weights of the last step still.
#pragma once

#include <ATen/core/Tensor.h>

namespace remat {

/// Note [Warm casts]: under autocast the first forward casts a function's weights; another one in
/// the same autocast block takes the casts from autocast's cache, and so has other ops. What is in
/// the cache nobody can ask, but a weight of our own tells: while its cast is the same one, nobody
/// has cleared the cache. On one thread at a time.
class AutocastEpoch {
 public:
  /// True if the cache has not been cleared since the last call, in which it was on.
  bool is_warm();

  /// Makes the cache as it was before a forward that has found it cleared. The next is_warm() tells
  /// of what comes from now on.
  void clear();

 private:
  at::Tensor weight_;
  at::Tensor cast_;
};

}  // namespace remat
