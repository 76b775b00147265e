// SPDX-License-Identifier: BSD-3-Clause

// Saved-tensor hooks that keep copies.
#include "matrix/copying_hooks.h"

#include <any>
#include <utility>

namespace remat::matrix {

SavedTensorsHooks copying_hooks() {
  return {.pack = [](const at::Tensor& tensor) -> std::any { return tensor.clone(); },
          .unpack = [](const std::any& copy) { return std::any_cast<at::Tensor>(copy).clone(); }};
}

SavedTensorsHooks counting_hooks(int64_t& packed) {
  SavedTensorsHooks hooks = copying_hooks();
  hooks.pack = [&packed, pack = std::move(hooks.pack)](const at::Tensor& tensor) {
    ++packed;
    return pack(tensor);
  };
  return hooks;
}

}  // namespace remat::matrix
