// SPDX-License-Identifier: BSD-3-Clause

// One named call on this thread: the untyped half of native_op() and its like.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/named_call.h>

namespace remat {

class NamedCalls;
class Scope;

namespace detail {

/// True if this thread runs the function of a region.
REMAT_API bool is_in_region();

/// Throws ValueError that begins with `where` if the name is empty.
REMAT_API void check_call_name(const NamedCall& call, const char* where);

/// Autograd will save these tensors for the SAVE call that this thread is in, if there is one.
REMAT_API void name_saved(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors);

/// Begins the call in the regions that it is a call of; ends it when destroyed, as one that threw
/// unless finish() was called.
class REMAT_API NamedCallScope {
 public:
  NamedCallScope(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  NamedCallScope(const NamedCallScope&) = delete;
  NamedCallScope& operator=(const NamedCallScope&) = delete;
  ~NamedCallScope();

  /// True if the function is not to be called: results() is what it would return.
  bool is_skipped() const { return skipped_; }
  const CallResults& results() const { return results_; }

  /// True if no named call and no region inside the call runs, on this thread. Only then it may
  /// end.
  bool is_innermost() const;
  /// Throws if not: record_outputs() of a handle of `call` ends it.
  void check_innermost(const NamedCall& call) const;

  /// By the call's own policy, or by the one that the region's rules give the call.
  bool is_saved() const { return is_saved_; }

  /// After the call has ended, autograd will save these tensors for it: as `saving` says or,
  /// without it, before the next op. A second time replaces the first.
  void expect_saved(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors,
                    const SavingState& saving);

  /// The function has returned. Throws if a replay could not leave the call out.
  void finish(const CallResults& results);

 private:
  void begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments);
  void skip(c10::ArrayRef<at::Tensor> arguments);
  void abandon_all() noexcept;
  void leave() noexcept;

  NamedCallScope* outer_;  // of this thread
  const Scope* const region_;
  c10::SmallVector<NamedCalls*, 2> open_;  // outermost first
  CallResults results_;
  bool skipped_ = false;
  bool is_saved_ = false;
};

}  // namespace detail
}  // namespace remat
