// SPDX-License-Identifier: BSD-3-Clause

// An op of a recording in words, with where its tensors come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <remat/recording/recording.h>

namespace remat::detail {

enum class OriginKind : uint8_t { kUnknown, kMade, kOutside };

/// Where a tensor comes from, as one can say of two runs: no address is in it.
struct TensorOrigin {
  static constexpr size_t kElsewhere = static_cast<size_t>(-1);

  OriginKind kind = OriginKind::kUnknown;
  /// Of kMade the op's in its stream; of kOutside how manieth is met; kElsewhere: by one side only.
  size_t number = 0;
  uint32_t stream = 0;   ///< Of kMade
  uint64_t storage = 0;  ///< See StorageOrigin.
  /// A replay has made it anew, perhaps as a copy of what the function writes.
  bool is_replayed = false;
};

/// Ops of a run that are compared one by one: of thread stream / kKinds (in order of their begins)
/// those of one kind.
struct StreamKind {
  static constexpr uint32_t kProgram = 0;  ///< Outside of regions and in their forwards
  static constexpr uint32_t kBackward = 1;
  static constexpr uint32_t kReplays = 2;
  static constexpr uint32_t kKinds = 3;
};

/// "aten::mul.Tensor(float32 [4] on cpu of op 3, float32 [4] on cpu from outside #1, 2)".
/// `origins`: of its arguments; `stream`: its own.
std::string op_words(const Recording& recording, size_t op,
                     const std::vector<TensorOrigin>& origins, uint32_t stream);

}  // namespace remat::detail
