// SPDX-License-Identifier: BSD-3-Clause

// The thread's stack of scopes, which decide what happens to tensors that autograd saves.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <remat/engine/export.h>
#include <remat/engine/is_recomputing.h>
#include <remat/engine/trace_sink.h>

namespace remat {

class BackwardObserver;
class NamedCalls;
class OpObserver;
class Region;
class RegionPolicy;
class RegionRun;
class SegmentPolicies;
class UserHooksScope;

/// One scope of the thread's stack: a region's forward, a replay, or a pair of user hooks. Pushed
/// on construction, popped on destruction, on the same thread. New threads and forked children
/// begin with an empty stack.
///
/// A role that not all scopes have is in an object of its own, a part, which lives as long as its
/// scope. The pointer to a part is null if the scope lacks the role.
class REMAT_API Scope {
 public:
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  virtual ~Scope();

  /// Hooks for the tensor that autograd is about to save; null keeps the tensor itself.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;

  /// Captures context for the user hooks that would get a tensor saved in this scope.
  virtual std::any capture_context();

  /// The part that knows the region whose function this scope runs; null for other scopes.
  RegionRun* run() const { return parts_.run; }

  /// This scope, if it is a pair of user hooks; else null.
  const UserHooksScope* user_hooks() const { return parts_.user_hooks; }

  OpObserver* ops() const { return parts_.ops; }

  /// Observer of backward passes that begin in this scope.
  BackwardObserver* backwards() const { return parts_.backwards; }

  /// Policies of a region with cuts, whose policy() is RegionPolicy::per_segment().
  SegmentPolicies* segments() const { return segments_; }

  /// The handler of named calls made in this scope; null if the scope runs no region's function.
  NamedCalls* named_calls() const;

  /// True if a named call in this scope just calls its function: see PlannedCuts.
  bool has_plain_calls() const { return has_plain_calls_; }
  void set_plain_calls() { has_plain_calls_ = true; }

  /// The policy for ops in this scope.
  const RegionPolicy* policy() const { return policy_; }

  /// The innermost scope of this thread, null if there is none.
  static Scope* current();

  /// The innermost scope of this thread that handles named calls; null if there is none.
  static Scope* innermost_with_calls();

  /// Id of the innermost replay on this thread; 0 if there is none.
  static uint64_t current_replay();

  /// trace_scope() of this thread's innermost region.
  static TraceScope current_trace_scope();

  /// Number of Python dispatch modes active on this thread.
  static int64_t modes_here();

  /// The next scope outward.
  Scope* previous() const { return previous_; }

  /// The next scope outward that sees this scope's ops: Note [Who sees an op].
  Scope* next_to_see_ops() const { return next_to_see_ops_; }

  /// The innermost scope, from this one outward, that is not a pair opened by the user. If there is
  /// none (null), the user's hooks get what is saved. See Note [Hooks inside a region].
  Scope* region_scope();

  /// The region whose forward or replay this scope is; null for other kinds of scope.
  const Region* region() const;

  /// Id of the replay that this scope is; 0 for other kinds of scope.
  uint64_t replay_id() const;

  /// True while the handler of a Python dispatch mode runs, if that mode was entered before this
  /// scope began. Fewer modes are then active than at the scope's beginning, because a handler runs
  /// without its mode.
  bool in_mode_handler() const { return was_before(modes_here()); }

  /// Like in_mode_handler(), if `modes` dispatch modes are active.
  bool was_before(int64_t modes) const { return dispatch_modes_ > 0 && modes < dispatch_modes_; }

  /// True if code of this scope has entered a Python dispatch mode.
  bool opens_mode() const { return modes_here() > dispatch_modes_; }

  /// True if this scope belongs to a replay: the scope is a replay, or was opened inside one.
  bool in_replay() const { return in_replay_; }

  /// in_replay() of this thread's innermost scope; false if there is none.
  static bool is_in_replay() { return current() && current()->in_replay(); }

  /// True if PyTorch's own (Python) hook stack has pairs pushed after this scope began. A saved
  /// tensor reaches those pairs first.
  bool has_python_hooks_inside() const;

  /// Depth of PyTorch's hook stack when this scope began.
  size_t python_hooks_depth() const { return python_hooks_depth_; }

 protected:
  enum class Phase { kForward, kReplay };
  enum class Ops {
    kAsAround,  ///< Intercepted if ops of the scope around this one are.
    kSeen,
  };
  explicit Scope(Phase phase = Phase::kForward, Ops ops = Ops::kAsAround);

  struct Parts {
    OpObserver* ops = nullptr;
    BackwardObserver* backwards = nullptr;
    RegionRun* run = nullptr;
    const UserHooksScope* user_hooks = nullptr;
  };
  void set_parts(const Parts& parts) { parts_ = parts; }

  /// For a region's scope; null if the region has no policy.
  void set_policy(const RegionPolicy* policy) { policy_ = policy; }
  void set_segments(SegmentPolicies* segments) { segments_ = segments; }

  /// Pops this scope. Call it before the destructor, because destroying parts may run user code.
  void leave();

  /// For a replay: shows its ops only to the replay `replay_id` and the scopes around that replay,
  /// or to no other scope if `replay_id` is 0.
  void hide_ops_up_to(uint64_t replay_id);

 private:
  Scope* previous_;
  Scope* next_to_see_ops_;
  Parts parts_;
  const RegionPolicy* policy_;  // The innermost region's policy.
  SegmentPolicies* segments_ = nullptr;
  size_t python_hooks_depth_;  // Depth of PyTorch's hook stack at construction.
  int64_t dispatch_modes_;     // Python dispatch modes at construction.
  bool in_replay_;
  bool ops_seen_around_;
  bool has_left_ = false;
  bool has_plain_calls_ = false;
};

}  // namespace remat
