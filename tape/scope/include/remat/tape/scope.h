// SPDX-License-Identifier: BSD-3-Clause

// The thread's stack of scopes: they decide what becomes of a tensor that autograd saves, and see
// the ops of regions.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/policy/policy.h>
#include <remat/tape/export.h>
#include <remat/tape/trace_sink.h>

namespace remat {

class NamedCalls;
class OpCall;
class OpInfo;
class Region;
class RegionPolicy;
struct SavedTensorsHooks;
using EdgeList = std::vector<torch::autograd::Edge>;

/// One scope of the thread's stack: a region's forward, a replay, or a pair of user hooks. Pushed
/// when made, popped when destroyed, on the same thread. New threads and forked children begin with
/// an empty stack.
class REMAT_API Scope {
 public:
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  virtual ~Scope();

  /// Hooks for the tensor that autograd is about to save; null keeps the tensor itself.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;

  /// The region whose forward this scope is, null for every other kind.
  virtual const Region* forward_region() const { return nullptr; }

  /// The region that this scope replays, null for every other kind.
  virtual const Region* replayed_region() const { return nullptr; }

  /// A backward is about to run from `roots` inside this scope.
  virtual void before_backward(const EdgeList& roots);

  /// It will pass this number of hooks on the gradients of tensors.
  virtual void before_hooks(size_t count);

  /// It accumulates into leaves.
  virtual void before_accumulate(const EdgeList& roots);

  /// A backward inside this scope has ended; `gradients`: what it returns, to the innermost region
  /// only.
  virtual void after_backward(c10::ArrayRef<at::Tensor> gradients);

  /// An op of this scope, or of one inside it, is about to run; its arguments may be replaced.
  /// `logged`: forward and replay both call it, so that they can be compared: false inside inner
  /// replays, and where it makes memory without values.
  virtual void before_op(OpCall& /*call*/, bool /*logged*/) {}

  /// It has run; not called if it threw.
  virtual void after_op(OpCall& /*call*/) {}

  /// A tensor on the memory of `tensor` is there now that has versions of its own. See
  /// Note [Data hooks].
  virtual void after_data(const at::Tensor& /*tensor*/) {}

  /// `tensor` is about to get the memory of another.
  virtual void before_set_data(const at::Tensor& /*tensor*/) {}

  /// `tensor` was made in this scope by code whose ops are not seen.
  virtual void adopt(const at::Tensor& /*tensor*/) {}

  /// As adopt(), of what an op has made that may run inside another one of this scope.
  virtual void adopt_part(const at::Tensor& tensor) { adopt(tensor); }

  /// Throws if a replay of this scope would write `storage` again: all_check_handler_write().
  virtual void check_handler_write(const OpInfo& /*info*/, const std::string& /*op*/,
                                   const c10::Storage& /*storage*/) const {}

  /// What an op of this scope is given in place of `tensor`: Note [Shadows].
  virtual at::Tensor stand_in(const at::Tensor& tensor) { return tensor; }
  virtual torch::autograd::Edge stand_in(const torch::autograd::Edge& edge) { return edge; }

  /// User code has asked is_recomputing(): from here on it may call other ops in a replay than in
  /// the forward.
  virtual void phase_was_asked() {}

  /// What decides about the ops of this scope; null if nothing does. Lives as long as the scope.
  const RegionPolicy* policy() const { return policy_; }

  /// For a region with cuts, whose policy() is RegionPolicy::per_segment(): an op is about to run.
  /// Returns the policy of the segment that it belongs to; null if that has none.
  virtual const RegionPolicy* segment_policy() { return nullptr; }

  /// For such a region: a rule says SAVE or OFFLOAD of the leaf op that runs next.
  virtual void save_next(Policy /*policy*/) {}

  /// For such a region: a rule says SAVE or OFFLOAD of a composite op that has just run.
  virtual void save_results(const OpCall& /*call*/, Policy /*policy*/) {}

  /// What the named calls in this scope are for; null if nothing.
  virtual NamedCalls* named_calls() { return nullptr; }

  /// True if regions that begin here may be replayed from tapes.
  virtual bool allows_tapes() const { return !previous_ || previous_->allows_tapes(); }

  /// A region begins here that would have a tape if `wanted`. Returns whether it has one: in a
  /// replay, as in the forward. See Note [Nested tapes].
  virtual bool decide_tape(bool wanted) { return wanted; }

  /// What the user hooks that would get a tensor saved here want to remember of this moment.
  virtual std::any capture_context();

  /// Where in a region its code is; without a region for other kinds.
  virtual TraceScope trace_scope() const { return {}; }

  /// True for a pair of user hooks.
  virtual bool is_user_hooks() const { return false; }

  /// This scope if it is of a region, else the next one outward that is; null if there is none:
  /// then the user's hooks get what is saved. See Note [Hooks inside a region].
  Scope* region_scope();

  /// Names a replay in this process; 0 for every other kind of scope.
  virtual uint64_t replay_id() const { return 0; }

  /// The pair of hooks if this is one that the user has opened, null for every other kind of scope.
  virtual std::shared_ptr<const SavedTensorsHooks> opened_hooks() const { return nullptr; }

  /// The id of the innermost replay that this thread is in, 0 if it is in none.
  static uint64_t current_replay();

  /// Tell the scopes of this thread, the outermost first. See Note [Who sees an op].
  static void all_before_op(OpCall& call, bool logged);
  static void all_after_op(OpCall& call);
  static void all_after_data(const at::Tensor& tensor);
  static void all_before_set_data(const at::Tensor& tensor);
  static void all_adopt(const at::Tensor& tensor);
  static void all_adopt_part(const at::Tensor& tensor);

  /// A handler of `info`, called by `modes` dispatch modes, has written `storage` by `op`. Throws
  /// NotImplementedError if a replay of one of the scopes of this thread would write it again. See
  /// Note [Writes of handlers].
  static void all_check_handler_write(const OpInfo& info, const std::string& op,
                                      const c10::Storage& storage, int64_t modes);

  /// How many dispatch modes of Python's this thread has now.
  static int64_t modes_here();

  /// What an op of this thread would be given in place of `tensor`; what a backward that starts
  /// or ends at `edge` is to start or end at.
  static at::Tensor current_stand_in(const at::Tensor& tensor);
  static torch::autograd::Edge current_stand_in(const torch::autograd::Edge& edge);

  /// What this scope sees of `tensor` in ops: a replay around may have put another in its place.
  at::Tensor as_seen(const at::Tensor& tensor) const;

  /// decide_tape() of the scopes of this thread, the outermost first.
  static bool all_decide_tape(bool wanted);

  /// trace_scope() of the innermost region of this thread.
  static TraceScope current_trace_scope();

  /// The innermost scope of this thread, null if there is none.
  static Scope* current();

  /// The innermost scope of this thread that has named calls, null if there is none.
  static Scope* innermost_with_calls();

  Scope* previous() const { return previous_; }

  /// The next scope outward that sees the ops of this one: Note [Who sees an op].
  Scope* next_to_see_ops() const { return next_to_see_ops_; }

  /// True while a dispatch mode of Python's that was there when this scope began handles something:
  /// its handler runs without it.
  bool in_mode_handler() const { return was_before(modes_here()); }

  /// The same, when there are `modes` dispatch modes.
  bool was_before(int64_t modes) const { return dispatch_modes_ > 0 && modes < dispatch_modes_; }

  /// True if the code of this scope has opened a dispatch mode of Python's.
  bool opens_mode() const { return modes_here() > dispatch_modes_; }

  /// True if this scope belongs to a replay: it is one, or was opened inside one.
  bool in_replay() const { return in_replay_; }

  /// True if PyTorch's own (Python) stack of hooks has some that were pushed after this scope
  /// began: they are nearer to the tensor.
  bool has_python_hooks_inside() const;

  /// How many were on that stack then.
  size_t python_hooks_depth() const { return python_hooks_depth_; }

 protected:
  enum class Phase { kForward, kReplay };
  enum class Ops {
    kAsAround,  ///< Seen if the scope around this one sees them.
    kSeen,
  };
  explicit Scope(Phase phase = Phase::kForward, Ops ops = Ops::kAsAround);

  /// For a region: null if it has none.
  void set_policy(const RegionPolicy* policy) { policy_ = policy; }

  /// For a replay: only the replay named `replay_id` and the scopes around that one see its ops.
  void hide_ops_up_to(uint64_t replay_id);

 private:
  friend class HiddenScopes;
  friend class OuterScopes;
  friend class ScopesAround;
  static void before_op_from(Scope* scope, OpCall& call, bool logged);
  static bool decide_tape_from(Scope* scope, bool wanted);
  template <class T>
  static T stand_in_from(Scope* scope, const T& of);

  Scope* previous_;
  Scope* next_to_see_ops_;
  const RegionPolicy* policy_;  // of the innermost region
  size_t python_hooks_depth_;   // of PyTorch's stack, when this scope began
  int64_t dispatch_modes_;      // of Python's, then
  bool in_replay_;
  bool ops_seen_around_;
};

/// Hides all scopes of this thread while alive: user callbacks run as if outside every region, and
/// no op is seen.
class REMAT_API SuspendScopes {
 public:
  SuspendScopes();
  SuspendScopes(const SuspendScopes&) = delete;
  SuspendScopes& operator=(const SuspendScopes&) = delete;
  ~SuspendScopes();

 private:
  Scope* hidden_;
  bool ops_were_seen_;
};

/// Hides a scope and everything inside it while alive, PyTorch's own hooks too.
class REMAT_API HiddenScopes {
 public:
  HiddenScopes(const HiddenScopes&) = delete;
  HiddenScopes& operator=(const HiddenScopes&) = delete;

 protected:
  HiddenScopes();
  ~HiddenScopes();

  /// Hides `scope`, which is the current one or around it.
  void hide(const Scope& scope);
  void hide_python_hooks(size_t count);

 private:
  Scope* hidden_;
  std::optional<at::impl::SavedTensorDefaultHooksTLS> python_hooks_;  // if some are hidden
};

/// Hides `scope`, the scopes inside it and user hooks right around it, PyTorch's own too, while
/// alive: what is saved then is remat's own.
class REMAT_API OuterScopes final : HiddenScopes {
 public:
  explicit OuterScopes(const Scope& scope);
};

/// Hides `scope` and the scopes inside it while alive; with Keep::kAllRegions, everything up to the
/// outermost region. What is saved then is kept for the user: by the hooks around, or an outer
/// region.
class REMAT_API ScopesAround final : HiddenScopes {
 public:
  ScopesAround(const Scope& scope, Keep keep);
};

/// True while this thread runs a region's function again, before backward. A function that asks may
/// leave out side effects then; so from the question on, forward and replay are compared by their
/// saved tensors only, no longer op by op.
REMAT_API bool is_recomputing();

}  // namespace remat
