// SPDX-License-Identifier: BSD-3-Clause

// Points of a step at which a fault can be injected, their count, and the fault itself.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

namespace remat::faults {

/// Operation that fails.
enum class Kind {
  kOp,          ///< An op, before it runs: composite ones, their parts, and ops that kernels call.
  kAllocation,  ///< An allocation of tensor memory on the CPU.
  kCallback,    ///< A function or hook of the user, or a copy of the function.
};

/// Phase of the step in which the operation fails.
enum class Phase { kForward, kReplay, kBackward };

constexpr size_t kNever = std::numeric_limits<size_t>::max();

/// Error thrown by an op or a callback.
class InjectedError : public std::runtime_error {
 public:
  InjectedError(size_t point, const std::string& where);
  size_t point() const { return point_; }

 private:
  size_t point_;
};

/// Error thrown by an allocation.
class InjectedOutOfMemory : public c10::OutOfMemoryError {
 public:
  explicit InjectedOutOfMemory(size_t point);
  size_t point() const { return point_; }

 private:
  size_t point_;
};

/// Counts the points of one kind that its thread passes while it lives, and throws at one of them.
class Injector {
 public:
  /// The first point is 1; kNever throws at none. `before_throw` runs before the throw, uncounted.
  Injector(Kind kind, size_t point, std::function<void()> before_throw = {});
  Injector(const Injector&) = delete;
  Injector& operator=(const Injector&) = delete;
  ~Injector();

  /// Counts later points as those of a backward, or of the replays in it.
  void begin_backward() { in_backward_ = true; }

  size_t passed() const { return passed_; }
  const std::array<size_t, 3>& by_phase() const { return by_phase_; }
  size_t thrown() const { return thrown_; }
  /// Returns phase, op and name of the point that failed.
  const std::string& where() const { return where_; }

 private:
  friend void pass_point(Kind kind, const char* name);
  friend class OpScope;

  void pass(const char* name);
  Phase phase() const;

  const Kind kind_;
  const size_t point_;
  const std::function<void()> before_throw_;
  const c10::impl::IncludeDispatchKeyGuard sees_ops_;
  bool in_backward_ = false;
  std::optional<Phase> phase_of_op_;  // phase of the running ops, if any
  const char* op_ = nullptr;          // the innermost of these ops
  size_t passed_ = 0;
  std::array<size_t, 3> by_phase_{};
  size_t thrown_ = 0;
  std::string where_;
};

/// Passes a point of `kind`; the injector of this thread, if there is one, may throw.
void pass_point(Kind kind, const char* name);

/// Returns the number of live blocks of CPU tensor memory in the whole process.
int64_t live_blocks();

}  // namespace remat::faults
