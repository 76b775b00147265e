// SPDX-License-Identifier: BSD-3-Clause

// LibTorch's settings that change what an op computes: read at region entry, set for a replay.
#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/typeid.h>

#include <array>
#include <cstdint>
#include <string>

#include <remat/engine/export.h>
#include <remat/engine/op_call.h>

namespace remat {

/// Settings that all threads share.
struct ProcessSettings {
  caffe2::TypeMeta default_dtype;
  uint32_t flags = 0;
  bool operator==(const ProcessSettings&) const = default;
};

/// This thread's settings for forward-mode AD, autocast and denormal numbers, and the process's
/// default dtype, deterministic flags, and allowed libraries and attention backends.
class REMAT_API ThreadState {
 public:
  static ThreadState read();

  /// Throws, with `region_label`, if the present float32 precision differs. A replay cannot restore
  /// the precision, because LibTorch does not report how it was set.
  void check_precision(const std::string& region_label) const;

 private:
  friend class ReplayThreadState;
  static constexpr size_t kAutocastDevices = 10;

  ThreadState() = default;
  /// Reads the thread's settings, without precision and process settings.
  static ThreadState read_thread();
  void restore_thread() const;

  std::array<c10::ScalarType, kAutocastDevices> autocast_dtype_{};
  uint32_t autocast_enabled_ = 0;
  bool autocast_cache_ = true;
  bool forward_ad_ = true;
  bool flushes_denormals_ = false;
  int threads_ = 0;  // Number of threads that an op may use.
  uint32_t precision_ = 0;
  ProcessSettings process_;
};

/// The settings that decide the bits of ops' results, as they were at construction. All ops depend
/// on the default dtype, the flushing of denormals and the use of MKL-DNN. Ops that are not
/// pointwise also depend on other libraries, deterministic flags and the number of threads. Ops
/// that may multiply matrices also depend on the precision.
class REMAT_API ComputeSettings {
 public:
  ComputeSettings();

  /// A nonzero difference if the settings that the op depends on have changed; else 0.
  uint64_t changed(const OpCall& call) const;

 private:
  /// kCpuProduct leaves out the settings of CUDA, which do not matter on the CPU and take long to
  /// read.
  enum class Kind : uint8_t { kPointwise, kOther, kCpuProduct, kProduct };
  static Kind kind_of(const OpCall& call);

  uint64_t always_;  ///< Settings that all ops depend on.
  uint32_t threads_;
  uint32_t flags_;
  uint32_t precision_;
};

/// While alive, this thread computes under `state`, with gradients recorded, and without autocast's
/// weight cache if `casts_weights`, which means that the region may cast weights.
///
/// Note [Autocast's weight cache]: the forward uses the cache as it would without remat. A weight
/// that two regions share is cast once and its gradient accumulates at that one cast; otherwise
/// gradients would not be bitwise equal to those of plain code. A replay neither reads nor fills
/// the cache: a repeated cast gives the same values, and autograd saves no tensor for it.
///
/// Note [Settings of the process]: replays that need the same settings run side by side; a replay
/// that needs other settings waits in blocking_wait() until those have ended, and the last of them
/// restores the settings from before the first. Meanwhile, threads that compute outside replays see
/// the replays' settings, as with any other change of process settings.
class REMAT_API ReplayThreadState {
 public:
  ReplayThreadState(const ThreadState& state, bool casts_weights);
  ReplayThreadState(const ReplayThreadState&) = delete;
  ReplayThreadState& operator=(const ReplayThreadState&) = delete;
  ~ReplayThreadState();

 private:
  ProcessSettings outer_;
  ThreadState present_;
  c10::AutoGradMode grad_mode_{true};
  c10::InferenceMode inference_mode_{false};
};

}  // namespace remat
