// SPDX-License-Identifier: BSD-3-Clause

// Pairs of pack and unpack functions that decide how autograd keeps a saved tensor:
// torch.autograd.graph.saved_tensors_hooks for C++.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <functional>
#include <string>

#include <remat/engine/export.h>

namespace remat {

/// The role of a tensor that is passed to saved-tensor hooks.
enum class SavedTensorKind : uint8_t {
  kCheckpointInput,  ///< A tensor argument of a region.
  kBackward,         ///< Saved by autograd, outside of regions or in a SAVE call.
  kSaveOutput,       ///< A result of a SAVE call that is read by code outside of the call.
};

struct SavedTensorInfo {
  SavedTensorKind kind = SavedTensorKind::kBackward;
  std::string region;  ///< The region's name; empty outside of regions and for an unnamed region.
  std::string call;    ///< The SAVE call's name; empty for a region's arguments.
  std::any context;    ///< Result of capture_context; empty if there is none.
  /// The tensor that is saved; pack gets a detached alias of it. Valid during pack.
  const at::Tensor* original = nullptr;
};

/// Describes the tensor that is being packed. Call it in pack, on pack's thread; throws elsewhere.
REMAT_API const SavedTensorInfo& current_saved_tensor_info();

/// `pack` gets each tensor that autograd saves (detached, sharing its data) and returns what to
/// keep instead. `unpack` gets the kept object back and returns a tensor of the same shape, dtype
/// and device; otherwise an error gives the expected and the actual ones. Both functions run
/// without any region active, and with gradients off unless backward builds a graph. `unpack` may
/// run on another thread, and more than once.
struct SavedTensorsHooks {
  std::function<std::any(const at::Tensor&)> pack;
  std::function<at::Tensor(const std::any&)> unpack;
  /// Called when a region begins, when a SAVE call saves a tensor, and when the call ends, so that
  /// each tensor's context describes where the tensor came from. current_saved_tensor_info() has
  /// the result. May be empty.
  std::function<std::any()> capture_context{};
};

/// Throws a ValueError that begins with `where` if a function is missing.
REMAT_API void check_saved_tensors_hooks(const SavedTensorsHooks& hooks, const char* where);

}  // namespace remat
