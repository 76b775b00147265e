// SPDX-License-Identifier: BSD-3-Clause

// A recorded op as text, with the origins of its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <remat/recording/recording.h>

namespace remat::detail {

enum class OriginKind : uint8_t { kUnknown, kMade, kOutside };

/// The origin of a tensor, without addresses, so that two runs can be compared.
struct TensorOrigin {
  static constexpr size_t kElsewhere = static_cast<size_t>(-1);

  OriginKind kind = OriginKind::kUnknown;
  /// For kMade the op's number in its stream; for kOutside the number of the storage in the order
  /// of first use; kElsewhere if only one side has it.
  size_t number = 0;
  uint32_t stream = 0;   ///< For kMade.
  uint64_t storage = 0;  ///< See StorageOrigin.
  /// True if a replay made it, perhaps as a copy of what the function writes.
  bool is_replayed = false;
};

/// Kinds of ops of a run that are compared one by one. A stream holds the ops of one kind on one
/// thread: stream / kStreamKinds is the thread, in the order in which threads began.
enum StreamKind : uint32_t {
  kProgramStream = 0,  ///< Ops outside regions and in their forwards
  kBackwardStream = 1,
  kReplayStream = 2,
};
inline constexpr uint32_t kStreamKinds = 3;

/// A text such as "aten::mul.Tensor(float32 [4] on cpu of op 3, float32 [4] on cpu from outside #1,
/// 2)". `origins` are those of the arguments; `stream` is the op's own.
std::string op_words(const Recording& recording, size_t op,
                     const std::vector<TensorOrigin>& origins, uint32_t stream);

}  // namespace remat::detail
