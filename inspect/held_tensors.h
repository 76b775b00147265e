// SPDX-License-Identifier: BSD-3-Clause

// The tensors that a region holds, for the reports in this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/engine/call_log.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/region.h>
#include <remat/engine/replayer.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/tensor_meta.h>
#include <remat/inspect/memory_report.h>
#include <remat/inspect/region_saves.h>

namespace remat {

struct HeldTensor {
  enum class Kind : uint8_t {
    kArgument,  ///< An argument of the function, kept for the replay.
    kOfCut,     ///< A value made before a cut of the tape.
    kOfTape,    ///< A value that the tape keeps in place of records.
    kWritten,   ///< The bytes of outside memory from before the region wrote it, or a part of them.
    kSaved,     ///< A tensor that autograd saved in a SAVE call.
    kResult,    ///< A tensor that a SAVE call made or wrote.
  };
  Kind kind;
  /// Index of the argument (kArgument), storage (kWritten) or product (kResult); else 0.
  size_t number = 0;
  std::string name{};  ///< The value's name for kOfCut, kOfTape and kSaved; else empty.
  TensorMeta meta;
  std::optional<TensorLayout> layout{};  ///< nullopt if unknown
  HeldStorage storage;
  bool is_leaf = false;  ///< True for a leaf, which its user has anyway: it is not billed.
  const KeptTensor* kept = nullptr;      ///< Set for kSaved.
  const CallProduct* product = nullptr;  ///< Set for kResult.
  /// The product's value, held here so that no backward releases it meanwhile.
  CallProduct::Held value{};

  /// Index of the call; only for kSaved and kResult.
  size_t call() const { return kept ? kept->call : product->call(); }
};

/// The tensors that `region` still holds, ordered by kind, then in the forward's order. `replayer`
/// is region.replayer(): the result refers to it and to the region, so the caller keeps it.
std::vector<HeldTensor> held_tensors(const Region& region, const Replayer* replayer);

/// True if the region's forward has ended or runs on this thread; else another thread is filling
/// it.
bool may_be_looked_into(const Region& region);

/// The tensors that `region` holds in storages not yet in `billed`. Adds these storages to
/// `billed`.
RegionSaves region_saves_of(const Region& region, std::unordered_set<const void*>& billed);

/// Estimates how much each change would free of what regions hold. Returns the most valuable
/// changes by device; each is the best one given those before it.
std::vector<MemoryChange> best_changes(
    const std::vector<std::pair<const Region*, HeldTensor>>& held);

}  // namespace remat
