// SPDX-License-Identifier: BSD-3-Clause

// The thread's stack of scopes: they decide what becomes of a tensor that autograd saves.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <remat/tape/export.h>
#include <remat/tape/is_recomputing.h>
#include <remat/tape/trace_sink.h>

namespace remat {

class BackwardObserver;
class NamedCalls;
class NestedTapes;
class OpObserver;
class Region;
class RegionPolicy;
class SegmentPolicies;
struct SavedTensorsHooks;

/// One scope of the thread's stack: a region's forward, a replay, or a pair of user hooks. Pushed
/// when made, popped when destroyed, on the same thread. New threads and forked children begin with
/// an empty stack.
///
/// What else a scope does is in its parts; one that it does not have is null. They live as long as
/// the scope.
class REMAT_API Scope {
 public:
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  virtual ~Scope();

  /// Hooks for the tensor that autograd is about to save; null keeps the tensor itself.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;

  /// What the user hooks that would get a tensor saved here want to remember of this moment.
  virtual std::any capture_context();

  /// The region whose forward this scope is, null for every other kind.
  virtual const Region* forward_region() const { return nullptr; }

  /// The region that this scope replays, null for every other kind.
  virtual const Region* replayed_region() const { return nullptr; }

  /// Names a replay in this process; 0 for every other kind of scope.
  virtual uint64_t replay_id() const { return 0; }

  /// Where in a region its code is; without a region for other kinds.
  virtual TraceScope trace_scope() const { return {}; }

  /// True for a pair of user hooks.
  virtual bool is_user_hooks() const { return false; }

  /// The pair of hooks if this is one that the user has opened, null for every other kind of scope.
  virtual std::shared_ptr<const SavedTensorsHooks> opened_hooks() const { return nullptr; }

  /// Sees the ops.
  OpObserver* ops() const { return parts_.ops; }

  /// Sees backwards that begin here.
  BackwardObserver* backwards() const { return parts_.backwards; }

  /// Decides which regions that begin here have tapes.
  NestedTapes* nested_tapes() const { return parts_.nested_tapes; }

  /// The policies of a region with cuts, whose policy() is RegionPolicy::per_segment().
  SegmentPolicies* segments() const { return segments_; }

  /// What the named calls here are for.
  virtual NamedCalls* named_calls() { return nullptr; }

  /// True if named calls here are plain calls of their functions: Cuts::plain_calls.
  bool has_plain_calls() const { return has_plain_calls_; }
  void set_plain_calls() { has_plain_calls_ = true; }

  /// What decides about the ops of this scope.
  const RegionPolicy* policy() const { return policy_; }

  /// The innermost scope of this thread, null if there is none.
  static Scope* current();

  /// The innermost scope of this thread that has named calls, null if there is none.
  static Scope* innermost_with_calls();

  /// The id of the innermost replay that this thread is in, 0 if it is in none.
  static uint64_t current_replay();

  /// trace_scope() of the innermost region of this thread.
  static TraceScope current_trace_scope();

  /// How many dispatch modes of Python's this thread has now.
  static int64_t modes_here();

  /// The next scope outward.
  Scope* previous() const { return previous_; }

  /// The next scope outward that sees the ops of this one: Note [Who sees an op].
  Scope* next_to_see_ops() const { return next_to_see_ops_; }

  /// This scope if it is of a region, else the next one outward that is; null if there is none:
  /// then the user's hooks get what is saved. See Note [Hooks inside a region].
  Scope* region_scope();

  /// The region whose forward or replay this scope is; null for every other kind.
  const Region* region() const {
    const Region* const forward = forward_region();
    return forward ? forward : replayed_region();
  }

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

  struct Parts {
    OpObserver* ops = nullptr;
    BackwardObserver* backwards = nullptr;
    NestedTapes* nested_tapes = nullptr;
  };
  void set_parts(const Parts& parts) { parts_ = parts; }

  /// For a region: null if it has none.
  void set_policy(const RegionPolicy* policy) { policy_ = policy; }
  void set_segments(SegmentPolicies* segments) { segments_ = segments; }

  /// Takes this scope off the stack before it dies: what its parts hold may run code of the user.
  void leave();

  /// For a replay: only the replay named `replay_id` and the scopes around that one see its ops.
  void hide_ops_up_to(uint64_t replay_id);

 private:
  Scope* previous_;
  Scope* next_to_see_ops_;
  Parts parts_;
  const RegionPolicy* policy_;  // of the innermost region
  SegmentPolicies* segments_ = nullptr;
  size_t python_hooks_depth_;  // of PyTorch's stack, when this scope began
  int64_t dispatch_modes_;     // of Python's, then
  bool in_replay_;
  bool ops_seen_around_;
  bool has_left_ = false;
  bool has_plain_calls_ = false;
};

}  // namespace remat
