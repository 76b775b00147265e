// SPDX-License-Identifier: BSD-3-Clause

// The user's function and its arguments, apart from the tensors among them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <exception>
#include <typeinfo>

#include <remat/tape/export.h>

namespace remat {

/// Ends a replay from inside the user's function. No std::exception: user code that handles errors
/// must not take it for one.
struct StopReplay {};

/// What a region runs again. Owned by the region; run() may be called by several threads at once.
class REMAT_API RegionBody {
 public:
  RegionBody() = default;
  RegionBody(const RegionBody&) = delete;
  RegionBody& operator=(const RegionBody&) = delete;
  virtual ~RegionBody() = default;

  /// The same for bodies that run the same code.
  virtual size_t identity() const { return typeid(*this).hash_code(); }

  struct Tensors {
    c10::ArrayRef<at::Tensor> arguments;
    c10::ArrayRef<at::Tensor> captured;  ///< Those with a gradient that the forward has met.
  };

  /// Calls the function with its arguments, `tensors.arguments` in place of the tensors among them,
  /// and drops what it returns. Takes back the hooks of the function's language that this sets on
  /// `tensors`: see TensorHooks.
  virtual void run(const Tensors& tensors) const = 0;

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
