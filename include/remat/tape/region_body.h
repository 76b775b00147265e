// SPDX-License-Identifier: BSD-3-Clause

// The user's function and its arguments, apart from the tensors among them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <typeinfo>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

/// Ends a replay from inside the user's function. No std::exception: user code that handles errors
/// must not take it for one.
struct StopReplay {};

/// The hooks that some tensors had; when destroyed, gives the tensors these hooks again: see
/// TensorHooks.
class REMAT_API KeptHooks {
 public:
  KeptHooks() = default;
  KeptHooks(const KeptHooks&) = delete;
  KeptHooks& operator=(const KeptHooks&) = delete;
  virtual ~KeptHooks() = default;

  /// Appends the tensors that have other hooks now.
  virtual void append_changed(std::vector<at::Tensor>& changed) const = 0;

  /// True if a tensor lacks a hook that it had, and the function has not set that hook anew.
  virtual bool lost() const = 0;
};

/// What a region runs again. Owned by the region; run() may be called by several threads at once.
class REMAT_API RegionBody {
 public:
  RegionBody() = default;
  RegionBody(const RegionBody&) = delete;
  RegionBody& operator=(const RegionBody&) = delete;
  virtual ~RegionBody() = default;

  /// The same for bodies that run the same code.
  virtual size_t identity() const { return typeid(*this).hash_code(); }

  /// Calls the function with its arguments, `inputs` in place of the tensors among them. Returns
  /// what the function has returned, which the caller drops outside of the region: as it dies it
  /// may run code of the user.
  virtual std::shared_ptr<const void> run(c10::ArrayRef<at::Tensor> inputs) const = 0;

  /// Notes which hooks of the function's own language `tensors` have. Null: LibTorch sees them all.
  virtual std::unique_ptr<KeptHooks> keep_hooks(c10::ArrayRef<at::Tensor> /*tensors*/) const {
    return nullptr;
  }

  /// Called inside run(), once backward has all it needs, at each tensor that autograd saves from
  /// then on: throws what passes through the function's language. Returns where the function is
  /// being left already and must finish that.
  virtual void stop() const { throw StopReplay{}; }

  /// True if `escaped`, which left run() after a stop, is to reach the caller all the same; other
  /// exceptions after a stop count as the stop.
  virtual bool outranks_stop(const std::exception_ptr& /*escaped*/) const { return false; }

  /// Throws `error`, with which the replay ends, or what stands for it in the function's language.
  /// `escaped`: what left run(); null if it returned.
  [[noreturn]] virtual void rethrow(const std::exception_ptr& error,
                                    const std::exception_ptr& escaped) const;
};

inline void RegionBody::rethrow(const std::exception_ptr& error,
                                const std::exception_ptr& /*escaped*/) const {
  std::rethrow_exception(error);
}

}  // namespace remat
