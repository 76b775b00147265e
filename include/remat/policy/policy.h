// SPDX-License-Identifier: BSD-3-Clause

// What becomes of the values that a named call makes.
#pragma once

#include <cstdint>

namespace remat {

enum class Policy : uint8_t {
  kSave,       ///< Not run again: what backward and later code need of it is kept.
  kRecompute,  ///< Run again before backward; nothing is kept.
  kOffload,    ///< As kSave, but kept by the region's hooks or OffloadStore.
};

/// Of regions inside regions: in which of them a call is SAVEd.
enum class Keep : uint8_t {
  kInnermostRegion,  ///< An outer region's replay runs the call again, and keeps from then on.
  kAllRegions,       ///< No region runs it again; it is kept from the first forward.
};

/// What happens when a bare op reads a result of a SAVE call, which then has to be kept although
/// nobody asked for it.
enum class ImplicitKeep : uint8_t {
  kKeep,      ///< It is kept.
  kWarnOnce,  ///< It is kept; the first one in the process is a warning.
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
