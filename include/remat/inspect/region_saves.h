// SPDX-License-Identifier: BSD-3-Clause

// The memory that one region holds for backward, storage by storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/tensor_layout.h>

namespace remat {

/// Returns a short note on a tensor for a report, such as where it was allocated, or "" for no
/// note. The function gets a detached alias of the kept tensor.
using Annotate = std::function<std::string(const at::Tensor&)>;

/// A tensor that a region keeps.
struct SavedView {
  std::vector<std::string> names;  ///< All names of this tensor: "x", "saved.1", "output 0"
  TensorLayout layout;             ///< Position in its storage
  size_t bytes = 0;                ///< Bytes of its elements
};

/// A storage that a region keeps, and the tensors for which the storage is kept.
struct SavedStorage {
  size_t bytes = 0;
  size_t used_bytes = 0;         ///< Bytes that lie in at least one of the views
  std::vector<SavedView> views;  ///< A view of the whole storage comes first, if there is one
  c10::Device device{c10::kCPU};
  HeldStorage storage;

  /// A tensor like the first view, without a graph; undefined if the storage has been freed since.
  REMAT_API at::Tensor tensor() const;
};

/// The tensors that a SAVE or OFFLOAD call keeps.
struct CallSaves {
  std::string name;  ///< Empty for what the region itself keeps for its replay, mostly arguments
  size_t bytes = 0;  ///< Sum of its storages
  std::vector<SavedStorage> storages;
};

/// All that one region keeps. Leaves that require grad and views of them are not counted.
struct RegionSaves {
  std::string region;            ///< Name of the region; empty if unnamed
  size_t bytes = 0;              ///< Sum of its calls
  std::vector<CallSaves> calls;  ///< Calls that keep something, in the order of the forward
  size_t rebuilt = 0;    ///< Number of tensors that calls saved and a replay rebuilds (refills)
  size_t offloaded = 0;  ///< Number of tensors kept in an OffloadStore
  size_t elsewhere = 0;  ///< Number of tensors kept by hooks or an outer region
  std::vector<std::string> released;  ///< Calls that keep nothing now, because their graph is gone

  REMAT_API size_t storage_count() const;

  /// The report as text, without a final newline: one line for the region, one per call, one per
  /// storage and further view of it, then the numbers of tensors not in memory. The bytes of the
  /// storages add up to those of the region.
  REMAT_API std::string str(const Annotate& annotate = {}) const;
};

/// The saves of the innermost region whose function runs on this thread, in the forward or in a
/// replay; nullopt if there is none.
REMAT_API std::optional<RegionSaves> current_region_saves();

}  // namespace remat
