// SPDX-License-Identifier: BSD-3-Clause

// Policies for the values that a named call makes.
#pragma once

#include <cstdint>

namespace remat {

enum class Policy : uint8_t {
  kSave,       ///< Does not run again; what backward and later code need of it is kept.
  kRecompute,  ///< Runs again before backward; nothing is kept.
  kOffload,    ///< As kSave, but kept by the region's hooks or OffloadStore.
};

/// For nested regions: which of them do not run a SAVE call again.
enum class Keep : uint8_t {
  kInnermostRegion,  ///< An outer region's replay runs the call again, and keeps it from then on.
  kAllRegions,       ///< No region runs it again; it is kept from the first forward.
};

/// Reaction when a bare op reads a result of a SAVE call, which must then be kept although nobody
/// asked for it.
enum class ImplicitKeep : uint8_t {
  kKeep,      ///< Keeps the result.
  kWarnOnce,  ///< Keeps the result, with a warning for the first one in the process.
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
