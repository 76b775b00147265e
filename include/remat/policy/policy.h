// SPDX-License-Identifier: BSD-3-Clause

// Policies for the values that a named call makes.
#pragma once

#include <cstdint>

namespace remat {

enum class Policy : uint8_t {
  kSave,       ///< The call does not run again; values that backward and later code need are kept.
  kRecompute,  ///< The call runs again before backward; nothing is kept.
  kOffload,    ///< Like kSave, but the region's hooks or OffloadStore keep the values.
};

/// The regions around a SAVE call whose replays do not run the call again.
enum class Keep : uint8_t {
  kInnermostRegion,  ///< An outer region's replay runs the call again, and keeps its results.
  kAllRegions,       ///< No replay runs the call again; the forward keeps its results.
};

/// Reaction when a bare op reads a result of a SAVE call. The result must then be kept for replays
/// of the op, although no policy asked for that.
enum class ImplicitKeep : uint8_t {
  kKeep,      ///< Keeps the result.
  kWarnOnce,  ///< Keeps the result, and warns the first time in the process.
  kError,     ///< The op raises, in the forward.
};

/// "SAVE", "RECOMPUTE", "OFFLOAD"
constexpr const char* policy_name(Policy policy) {
  switch (policy) {
    case Policy::kSave:
      return "SAVE";
    case Policy::kRecompute:
      return "RECOMPUTE";
    case Policy::kOffload:
      return "OFFLOAD";
  }
  return "no policy";
}

}  // namespace remat
