// SPDX-License-Identifier: BSD-3-Clause

// The boxed kernel that is registered in front of one op.
#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <atomic>
#include <cstdint>

#include <remat/engine/op_call.h>

#include "op_policy.h"

namespace remat {

/// Note [Leaf and composite ops]: a leaf op is shown to the scopes, and runs once, without
/// interception. A composite op consists of other ops and has no derivative of its own, so it runs
/// with interception on, and its parts are seen. Which kind an op is depends on the backend: for an
/// autograd key LibTorch takes the CompositeImplicitAutograd kernel unless something is registered
/// for that key, for its backend or as CompositeExplicitAutograd.
class InterceptKernel final : public c10::OperatorKernel {
 public:
  enum class Level {
    kAutograd,  ///< Registered for an autograd key.
    kBackend,   ///< Registered for a backend: tensors without autograd, or code below autograd.
  };

  InterceptKernel(const c10::OperatorHandle& op, Level level);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

  /// The keys of the kernel that follows remat's.
  static c10::DispatchKeySet below(c10::DispatchKeySet keys);

  /// What remat does with a call.
  enum class Route {
    kUnseen,       ///< Passes it on without interception.
    kSkippedView,  ///< The same, in a scope that need not see the view.
    kParts,        ///< Passes it on, so that its parts are intercepted.
    kSeen,         ///< Calls operator().
  };

  /// The route of a call of `op` with `keys`. `viewed`: the tensor that a plain view op views, and
  /// with which its results share memory; null for other ops. Needs Level::kAutograd.
  Route route(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const at::Tensor* viewed);

 private:
  enum class Kind : uint8_t { kUnknown, kLeaf, kComposite };

  const OpInfo& info(const c10::OperatorHandle& op);
  bool is_composite(const c10::OperatorHandle& op, c10::DispatchKey key);

  static constexpr size_t kKeys =
      static_cast<size_t>(c10::DispatchKey::EndOfRuntimeBackendKeys) + 1;

  const Level level_;
  const size_t non_blocking_;  // Position of the argument `non_blocking`; past the end if none.
  const bool may_return_early_;
  std::atomic<const OpInfo*> info_{nullptr};
  std::array<std::atomic<Kind>, kKeys> kinds_{};  // By autograd key.
  StaticDecision decision_;
};

/// Sets the backend whose bits switch interception on. Call it before any kernel runs.
void set_interception_backend(c10::BackendComponent backend);

/// The fallback for ops without a remat kernel on a backend key.
void intercept_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack);

/// For ops that autograd calls where it does not allow exceptions:
/// see Note [Where nothing may be thrown].
void intercept_size_query(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);

/// For ops that mark an argument as written but write no data.
void intercept_note(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);

/// Note [Plain writes]: outside of regions ops are not seen, and a write shows only in the version
/// of the written tensor. Batch norm gives its running statistics no new version, nor does its
/// schema say that it writes them. So remat registers a kernel below autograd for such ops, which
/// also runs outside of regions. If an earlier region has read or saved the memory, the kernel does
/// what a region does before a write.
void intercept_plain_write(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack);

/// For ops that make tensors without tensor arguments. A factory may call another factory.
void intercept_factory(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack);

}  // namespace remat
