// SPDX-License-Identifier: BSD-3-Clause

// What users say of how a replay is compared with its forward.
#pragma once

#include <functional>
#include <string>

namespace remat {

/// How a replay is compared with the forward.
enum class Determinism {
  kNone,      ///< By the op that saves each tensor, its shape, dtype and device.
  kMetadata,  ///< Each op with the shape, dtype, device and place in the graph of its tensors and
              ///< the values of its other arguments; each saved tensor likewise.
};

/// A line that says where the op comes from that is about to run on this thread; may be empty.
using OpSite = std::function<std::string()>;

}  // namespace remat
