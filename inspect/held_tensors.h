// SPDX-License-Identifier: BSD-3-Clause

// What a region holds, one tensor after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/tape/call_log.h>
#include <remat/tape/held_storage.h>
#include <remat/tape/region.h>
#include <remat/tape/replayer.h>
#include <remat/tape/tensor_layout.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

struct HeldTensor {
  enum class Kind : uint8_t {
    kArgument,  ///< Of the function, for the replay.
    kOfCut,     ///< Made before a cut of the tape.
    kOfTape,    ///< By the tape, in place of records.
    kWritten,   ///< From outside: a part of what it was before the region wrote it.
    kSaved,     ///< Autograd has saved it in a SAVE call.
    kResult,    ///< Made or written by a SAVE call.
  };
  Kind kind;
  size_t number;  ///< Of kArgument, of the storage of kWritten, of the product of kResult; else 0.
  std::string name;  ///< Of kOfCut, kOfTape and kSaved; else empty.
  TensorMeta meta;
  std::optional<TensorLayout> layout;  ///< If it is known.
  HeldStorage storage;
  bool is_leaf = false;                  ///< Its user has it anyway: it is not billed.
  const KeptTensor* kept = nullptr;      ///< Of kSaved.
  const CallProduct* product = nullptr;  ///< Of kResult.
  CallProduct::Held value{};             ///< Of it, so that no backward lets go of it meanwhile.

  /// The call, of kSaved and kResult.
  size_t call() const { return kept ? kept->call : product->call(); }
};

struct HeldTensors {
  /// In the order of the kinds, and in each in the forward's order. They refer to the region.
  std::vector<HeldTensor> all;
  /// Lives as long as what it holds is looked at; null if the region has none any more.
  std::shared_ptr<const Replayer> replayer;
};

/// What `region` holds. What it keeps no more is not among it.
HeldTensors held_tensors(const Region& region);

}  // namespace remat
