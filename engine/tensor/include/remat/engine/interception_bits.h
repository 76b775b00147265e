// SPDX-License-Identifier: BSD-3-Clause

// The thread's switch for interception: dispatch keys that route every op to remat's kernels first.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstdint>

#include <remat/engine/export.h>

namespace remat {

/// Note [Interception bits]: an op is intercepted while certain bits are in the thread's included
/// dispatch keys. The bits are set in the raw set, not as keys, because
/// c10::impl::IncludeDispatchKeyGuard would remove a backend's bit again when guards nest. LibTorch
/// carries this thread-local set to other threads. A thread that has the bits but no scope is not
/// in a region, so remat's kernels pass its ops on. backend/ chooses the bits once, before the
/// first region; until then the switch does nothing.
extern REMAT_API std::atomic<uint64_t> interception_bits;

/// True if ops of this thread are intercepted.
inline bool interception_is_on() {
  return (c10::impl::raw_local_dispatch_key_set.included_ &
          interception_bits.load(std::memory_order_relaxed)) != 0;
}

inline void switch_interception(bool on) {
  const uint64_t bits = interception_bits.load(std::memory_order_relaxed);
  uint64_t& included = c10::impl::raw_local_dispatch_key_set.included_;
  included = on ? included | bits : included & ~bits;
}

/// Switches this thread's interception off while alive, then restores it.
class InterceptionOff {
 public:
  InterceptionOff()
      : included_(&c10::impl::raw_local_dispatch_key_set.included_),
        bits_(*included_ & interception_bits.load(std::memory_order_relaxed)) {
    *included_ &= ~bits_;
  }
  InterceptionOff(const InterceptionOff&) = delete;
  InterceptionOff& operator=(const InterceptionOff&) = delete;
  ~InterceptionOff() { *included_ |= bits_; }

 private:
  uint64_t* included_;  // Points to this thread's key set.
  uint64_t bits_;
};

}  // namespace remat
