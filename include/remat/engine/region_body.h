// SPDX-License-Identifier: BSD-3-Clause

// The user's function together with its arguments other than tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <typeinfo>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

/// Exception that ends a replay from inside the user's function. Not derived from std::exception,
/// so that error handling in user code does not catch it.
struct StopReplay {};

/// The hooks that some tensors had when keep_hooks() captured them. The destructor restores these
/// hooks after a replay.
class REMAT_API KeptHooks {
 public:
  KeptHooks() = default;
  KeptHooks(const KeptHooks&) = delete;
  KeptHooks& operator=(const KeptHooks&) = delete;
  virtual ~KeptHooks() = default;

  /// Appends the tensors whose hooks now differ from the captured ones.
  virtual void append_changed(std::vector<at::Tensor>& changed) const = 0;

  /// True if a tensor lacks a captured hook, unless the function itself has replaced that hook.
  virtual bool lost() const = 0;
};

/// The function that a region runs again. Owned by the region. Threads may call run() concurrently.
class REMAT_API RegionBody {
 public:
  RegionBody() = default;
  RegionBody(const RegionBody&) = delete;
  RegionBody& operator=(const RegionBody&) = delete;
  virtual ~RegionBody() = default;

  /// A hash that is equal for bodies that run the same code.
  virtual size_t identity() const { return typeid(*this).hash_code(); }

  /// Calls the function with its arguments; `inputs` replace the tensors among the arguments.
  /// Returns the function's result, which the caller destroys outside of the region, because its
  /// destructors may run user code.
  virtual std::shared_ptr<const void> run(c10::ArrayRef<at::Tensor> inputs) const = 0;

  /// Captures the hooks on `tensors` that only the function's language (Python) knows. Null if
  /// LibTorch sees all hooks.
  virtual std::unique_ptr<KeptHooks> keep_hooks(c10::ArrayRef<at::Tensor> /*tensors*/) const {
    return nullptr;
  }

  /// Called inside run() each time that autograd saves a tensor after all slots that backward needs
  /// are filled. Throws an exception that passes through the function's language. Returns if the
  /// function is already unwinding an exception and must finish the unwinding.
  virtual void stop() const { throw StopReplay{}; }

  /// `escaped` is an exception that left run() after a stop. True if it must reach the caller;
  /// otherwise it is dropped, and the replay ends as if the stop had left run().
  virtual bool outranks_stop(const std::exception_ptr& /*escaped*/) const { return false; }

  /// Ends the replay: throws `error`, or its equivalent in the function's language. `escaped`: the
  /// exception that left run(); null if run() returned.
  [[noreturn]] virtual void rethrow(const std::exception_ptr& error,
                                    const std::exception_ptr& escaped) const;
};

inline void RegionBody::rethrow(const std::exception_ptr& error,
                                const std::exception_ptr& /*escaped*/) const {
  std::rethrow_exception(error);
}

}  // namespace remat
