// SPDX-License-Identifier: BSD-3-Clause

// The thread's switch for interception: dispatch keys that send every op to remat's kernels first.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

#include <remat/tape/export.h>

namespace remat {

/// Note [Interception bits]: an op is seen while certain bits are in the thread's included dispatch
/// keys. They are bits of the raw set, not keys: c10::impl::IncludeDispatchKeyGuard would take a
/// backend's bit out again when guards nest. The set is thread state that LibTorch carries to other
/// threads; a thread that has the bits but no scope is not in a region, and remat's kernels pass
/// its ops on. backend/ decides which bits, once, before the first region; until then the switch
/// does nothing.
REMAT_API void set_interception_bits(uint64_t bits);
REMAT_API uint64_t interception_bits();

/// True if ops of this thread are seen.
inline bool interception_is_on() {
  return (c10::impl::raw_local_dispatch_key_set.included_ & interception_bits()) != 0;
}

inline void switch_interception(bool on) {
  uint64_t& included = c10::impl::raw_local_dispatch_key_set.included_;
  included = on ? included | interception_bits() : included & ~interception_bits();
}

/// Off while alive, then as before.
class InterceptionOff {
 public:
  InterceptionOff() : was_on_(interception_is_on()) {
    if (was_on_) switch_interception(false);
  }
  InterceptionOff(const InterceptionOff&) = delete;
  InterceptionOff& operator=(const InterceptionOff&) = delete;
  ~InterceptionOff() {
    if (was_on_) switch_interception(true);
  }

 private:
  bool was_on_;
};

}  // namespace remat
