// SPDX-License-Identifier: BSD-3-Clause

// What one region holds for backward, storage by storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/held_storage.h>
#include <remat/tape/tensor_layout.h>

namespace remat {

/// A few words on a tensor for a report, such as where it was allocated; empty for none. The
/// function is given a detached alias of what is kept.
using Annotate = std::function<std::string(const at::Tensor&)>;

/// A tensor that is kept.
struct SavedView {
  std::vector<std::string> names;  ///< "x", "saved.1", "output 0": all that are this very tensor.
  TensorLayout layout;             ///< In its storage.
  size_t bytes = 0;                ///< That its elements lie in.
};

/// A storage that is kept, and the tensors for which it is.
struct SavedStorage {
  size_t bytes = 0;
  size_t used_bytes = 0;         ///< Of these, those that lie in one of the views.
  std::vector<SavedView> views;  ///< One that covers all of it first, if there is one.
  c10::Device device{c10::kCPU};
  HeldStorage storage;

  /// The first view, outside any graph; undefined if the storage has been freed since.
  REMAT_API at::Tensor tensor() const;
};

/// What a SAVE or OFFLOAD call keeps.
struct CallSaves {
  std::string name;  ///< Empty: what the region itself needs for its replay, its arguments mostly.
  size_t bytes = 0;  ///< The sum of its storages.
  std::vector<SavedStorage> storages;
};

/// What one region keeps. Leaves that require grad and views of them are in none of these numbers.
struct RegionSaves {
  std::string region;                 ///< Its name; empty without one.
  size_t bytes = 0;                   ///< The sum of its calls.
  std::vector<CallSaves> calls;       ///< Those that keep something, in the order of the forward.
  size_t rebuilt = 0;                 ///< Tensors that calls saved and that the replay rebuilds.
  size_t offloaded = 0;               ///< Tensors that are kept in an OffloadStore.
  size_t elsewhere = 0;               ///< Tensors that hooks or an outer region keep.
  std::vector<std::string> released;  ///< Calls that kept something until their graph was dropped.

  REMAT_API size_t storage_count() const;

  /// As text, without a line feed at its end: a line for the region, one per call, one per storage
  /// and further view of it, then what is not in memory. The bytes of the storages sum up to those
  /// of the region.
  REMAT_API std::string str(const Annotate& annotate = {}) const;
};

/// Of the innermost region whose function runs on this thread, in the forward or again; unset if
/// there is none.
REMAT_API std::optional<RegionSaves> current_region_saves();

}  // namespace remat
