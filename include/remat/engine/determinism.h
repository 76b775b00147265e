// SPDX-License-Identifier: BSD-3-Clause

// Options for comparing a replay with its forward.
#pragma once

#include <functional>
#include <string>

namespace remat {

/// How a replay is compared with the forward.
enum class Determinism {
  kNone,      ///< Compares each saved tensor: the op that saves it, its shape, dtype and device.
  kMetadata,  ///< Also compares each op: the shape, dtype, device and place in the graph of its
              ///< tensors, and the values of its other arguments.
};

/// Returns one line that says where the op that is about to run on this thread was called; may be
/// empty.
using OpSite = std::function<std::string()>;

}  // namespace remat
