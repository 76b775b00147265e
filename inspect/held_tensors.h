// SPDX-License-Identifier: BSD-3-Clause

// What a region holds, one tensor after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <remat/tape/call_log.h>
#include <remat/tape/held_storage.h>
#include <remat/tape/region.h>
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
  size_t number;     ///< Of the argument, the outside storage, the kept tensor, the product.
  std::string name;  ///< Of kOfCut, kOfTape and kSaved; else empty.
  TensorMeta meta;
  std::optional<TensorLayout> layout;  ///< If it is known.
  HeldStorage storage;
  bool is_leaf = false;                  ///< Its user has it anyway: it is not billed.
  const KeptTensor* kept = nullptr;      ///< Of kSaved.
  const CallProduct* product = nullptr;  ///< Of kResult.

  /// The call, of kSaved and kResult.
  size_t call() const { return kept ? kept->call : product->call(); }
};

/// All of them in the order of the kinds, and in each in the forward's order. What `region` keeps
/// no more is not among them. They refer to it.
std::vector<HeldTensor> held_tensors(const Region& region);

}  // namespace remat
