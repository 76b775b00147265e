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
    kOfCut,     ///< A value that a cut tape keeps for its later segments.
    kOfTape,    ///< An outside tensor that only the tape still holds, since no record makes it.
    kWritten,   ///< A copy of outside memory, or of a part of it, made before the region wrote it.
    kSaved,     ///< A tensor that autograd saved in a SAVE call.
    kResult,    ///< A tensor that a SAVE call made or wrote.
  };
  Kind kind;
  /// Index of the argument (kArgument), in Region::outside() (kWritten), or of the CallProduct
  /// (kResult); otherwise 0.
  size_t number = 0;
  std::string name{};  ///< The value's name for kOfCut, kOfTape and kSaved; else empty.
  TensorMeta meta;
  std::optional<TensorLayout> layout{};  ///< nullopt if unknown
  HeldStorage storage;
  bool is_leaf = false;  ///< A leaf that requires grad, not billed because the user holds it.
  const KeptTensor* kept = nullptr;      ///< Set for kSaved.
  const CallProduct* product = nullptr;  ///< Set for kResult.
  /// The product's value (kResult), held here so that no backward frees it during the report.
  CallProduct::Held value{};

  /// Index of the call; only for kSaved and kResult.
  size_t call() const { return kept ? kept->call : product->call(); }
};

/// The tensors that `region` still holds, ordered by kind, then in the forward's order. `replayer`
/// is region.replayer(). The result refers to `region` and `replayer`, so keep both alive.
std::vector<HeldTensor> held_tensors(const Region& region, const Replayer* replayer);

/// True if the region's forward has ended or runs on this thread; if not, another thread is
/// changing the region.
bool may_be_looked_into(const Region& region);

/// The tensors that `region` holds in storages not yet in `billed`. Adds these storages to
/// `billed`.
RegionSaves region_saves_of(const Region& region, std::unordered_set<const void*>& billed);

/// Estimates how many bytes of `held` each change of the user's code or policy would free. Returns
/// up to 16 changes for each device, each the one that frees most in addition to those before it.
std::vector<MemoryChange> best_changes(
    const std::vector<std::pair<const Region*, HeldTensor>>& held);

}  // namespace remat
