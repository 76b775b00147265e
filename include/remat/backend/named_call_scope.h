// SPDX-License-Identifier: BSD-3-Clause

// A named call on this thread: the untyped half of native_op() and op().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/named_call.h>

namespace remat {

class NamedCalls;
class Scope;

namespace detail {

/// True if this thread runs the function of a region.
REMAT_API bool is_in_region();

/// Throws a ValueError that begins with `where` if the name is empty.
REMAT_API void check_call_name(const NamedCall& call, const char* where);

/// Names the tensors that autograd is about to save for this thread's SAVE call. Does nothing
/// outside of SAVE calls.
REMAT_API void name_saved(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors);

/// Begins the call in each region that sees the call, and ends the call when destroyed. Without
/// finish() the call counts as one that threw.
class REMAT_API NamedCallScope {
 public:
  NamedCallScope(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  NamedCallScope(const NamedCallScope&) = delete;
  NamedCallScope& operator=(const NamedCallScope&) = delete;
  ~NamedCallScope();

  /// True if the function must not be called; results() has what it would return.
  bool is_skipped() const { return skipped_; }
  const CallResults& results() const { return results_; }

  /// True if no named call or region is open inside this call on this thread. Otherwise the call
  /// may not end yet.
  bool is_innermost() const;
  /// Throws unless is_innermost(). For a handle's record_outputs(), which ends `call`.
  void check_innermost(const NamedCall& call) const;

  /// True if the call is SAVE or OFFLOAD, by its own policy or by the region's rules.
  bool is_saved() const { return is_saved_; }

  /// Announces tensors that autograd will save for the call after the call has ended. `saving`
  /// tells whether autograd has done so; if `saving` is empty, autograd saves them before the next
  /// op. Replaces earlier announcements.
  void expect_saved(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors,
                    const SavingState& saving);

  /// Call it when the function has returned. Throws if a replay could not skip the call.
  void finish(const CallResults& results);

 private:
  void begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  void skip(c10::ArrayRef<at::Tensor> arguments);
  void abandon_all() noexcept;
  void leave() noexcept;

  NamedCallScope* outer_;  // enclosing scope on this thread
  const Scope* const region_;
  c10::SmallVector<NamedCalls*, 2> open_;  // outermost first
  CallResults results_;
  bool skipped_ = false;
  bool is_saved_ = false;
};

}  // namespace detail
}  // namespace remat
