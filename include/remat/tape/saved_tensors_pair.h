// SPDX-License-Identifier: BSD-3-Clause

// Pairs of functions that decide how autograd keeps a saved tensor:
// torch.autograd.graph.saved_tensors_hooks for C++.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <functional>
#include <string>

#include <remat/tape/export.h>

namespace remat {

/// What a tensor is that hooks are given.
enum class SavedTensorKind : uint8_t {
  kCheckpointInput,  ///< A tensor argument of a region.
  kBackward,         ///< Saved by autograd: outside of regions, or in a SAVE call.
  kSaveOutput,       ///< A result of a SAVE call that code outside of the call reads.
};

struct SavedTensorInfo {
  SavedTensorKind kind = SavedTensorKind::kBackward;
  std::string region;  ///< The region's name; empty outside of regions and for one without a name.
  std::string call;    ///< The SAVE call; empty for a region's arguments.
  std::any context;    ///< What capture_context returned; empty without one.
  /// The tensor that is saved, of which pack gets a detached alias. Valid during pack.
  const at::Tensor* original = nullptr;
};

/// What the tensor is that pack has been given. Throws outside of pack. On the thread of pack.
REMAT_API const SavedTensorInfo& current_saved_tensor_info();

/// `pack` gets each tensor that autograd saves (detached, sharing its data) and returns what to
/// keep instead; `unpack` gets that back and returns the tensor: same shape, dtype and device, else
/// an error names both. Both run with gradients off unless backward builds a graph, and without any
/// region active; `unpack` may run on another thread, and more than once.
struct SavedTensorsHooks {
  std::function<std::any(const at::Tensor&)> pack;
  std::function<at::Tensor(const std::any&)> unpack;
  /// Called in or around regions, where a tensor is made: when a region begins, when a SAVE call
  /// saves a tensor, when it ends. current_saved_tensor_info() has what it returned. May be empty.
  std::function<std::any()> capture_context{};
};

/// Checks that both functions are there. Throws ValueError that begins with `where`.
REMAT_API void check_saved_tensors_hooks(const SavedTensorsHooks& hooks, const char* where);

}  // namespace remat
