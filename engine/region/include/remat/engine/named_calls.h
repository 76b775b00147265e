// SPDX-License-Identifier: BSD-3-Clause

// How a scope handles the named calls made in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/named_call.h>

namespace remat {

/// The named calls of one forward or replay. For the thread of its scope only.
class REMAT_API NamedCalls {
 public:
  enum class Action {
    kRun,   ///< The caller runs the function, then calls end() or abandon().
    kSkip,  ///< The caller skips the function, then calls to_write() and results(), or abandon().
  };

  NamedCalls() = default;
  NamedCalls(const NamedCalls&) = delete;
  NamedCalls& operator=(const NamedCalls&) = delete;
  virtual ~NamedCalls() = default;

  /// `call` begins with these tensor arguments. Throws if the call is not allowed here.
  virtual Action begin(const NamedCall& call, c10::ArrayRef<at::Tensor> arguments) = 0;

  /// For a skipped call: to_write() returns the tensors that results() will write; results()
  /// repeats the call's effects and returns what the call would return.
  virtual std::vector<at::Tensor> to_write() = 0;
  virtual CallResults results() = 0;

  /// Call it when an outer scope skips the innermost call, before that scope writes `writes`, which
  /// the call would have written. The caller calls end() next.
  virtual void before_skip(c10::ArrayRef<at::Tensor> writes,
                           c10::ArrayRef<at::Tensor> arguments) = 0;

  /// The innermost call has returned. Throws if a replay could not leave the call out; abandon()
  /// must follow then.
  virtual void end(const CallResults& results) = 0;

  /// The innermost call has thrown.
  virtual void abandon() noexcept = 0;

  /// Announces that autograd will save `tensors` of the innermost call, in this order, after the
  /// call has returned. `saving` says when; if it is empty, autograd saves them before the next op.
  /// A later announcement for the same call replaces an earlier one.
  virtual void expect_saved(const std::vector<std::string>& names,
                            c10::ArrayRef<at::Tensor> tensors, const SavingState& saving) = 0;

  /// Announces that autograd will save these tensors for code of the innermost call, while that
  /// code runs or later, in any order.
  virtual void name_saved(const std::vector<std::string>& /*names*/,
                          c10::ArrayRef<at::Tensor> /*tensors*/) {}

  /// Call it if code that a replay runs again will read `tensor` unobserved.
  virtual void need(const at::Tensor& tensor) = 0;

  /// True in a replay. Then scopes around the replay are not asked about its calls.
  virtual bool is_replay() const = 0;

  /// True if an op may become a named call now: in the region's own code, outside SAVE calls.
  virtual bool takes_ops() const = 0;

  /// True in a replay that has only the forward's last op left, if that op was no named call. Then
  /// the policy need not be asked about it again.
  virtual bool knows_next_op() const { return false; }

  /// True if the memory of `tensor` got its values without an op: see Origin::given().
  virtual bool is_given(const at::Tensor& tensor) const = 0;

  /// Counts an op called `name` (with its NameScope). Returns how many such ops came before.
  size_t count_op(const std::string& name) { return op_counts_[name]++; }

 private:
  std::unordered_map<std::string, size_t> op_counts_;
};

/// False if placeholders do not work in this process (another library uses their dispatch key).
/// Then every result of a SAVE call is kept. Set once, before the first SAVE call.
extern REMAT_API std::atomic<bool> placeholders_work;

}  // namespace remat
