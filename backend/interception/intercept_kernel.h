// SPDX-License-Identifier: BSD-3-Clause

// The boxed kernel that stands in front of one op.
#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <atomic>
#include <cstdint>

#include <remat/tape/op_call.h>

#include "op_policy.h"

namespace remat {

/// Note [Leaf and composite ops]: a leaf op is shown to the scopes, and runs once, unseen. A
/// composite op is made of others and has no derivative of its own: it runs with interception on,
/// so that its parts are seen. Which one it is depends on the backend: for an autograd key LibTorch
/// takes the CompositeImplicitAutograd kernel unless something is registered for that key, for its
/// backend or as CompositeExplicitAutograd.
class InterceptKernel final : public c10::OperatorKernel {
 public:
  enum class Level {
    kAutograd,  ///< Registered for an autograd key.
    kBackend,   ///< Registered for a backend: tensors without autograd, or code below it.
  };

  InterceptKernel(const c10::OperatorHandle& op, Level level);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  enum class Kind : uint8_t { kUnknown, kLeaf, kComposite };

  const OpInfo& info(const c10::OperatorHandle& op);
  bool is_composite(const c10::OperatorHandle& op, c10::DispatchKey key);

  static constexpr size_t kKeys =
      static_cast<size_t>(c10::DispatchKey::EndOfRuntimeBackendKeys) + 1;

  const Level level_;
  const size_t non_blocking_;  // the position of that argument, if it has one
  const bool may_return_early_;
  std::atomic<const OpInfo*> info_{nullptr};
  std::array<std::atomic<Kind>, kKeys> kinds_{};  // by autograd key
  StaticDecision decision_;
};

/// The backend whose bits switch interception on. Set before any kernel runs.
void set_interception_backend(c10::BackendComponent backend);

/// The fallback for ops without a kernel of ours on a backend key.
void intercept_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack);

/// For ops that autograd calls where nothing may be thrown: see Note [Where nothing may be thrown].
void intercept_size_query(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);

/// For ops that mark an argument as written and write no data.
void intercept_note(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);

/// For ops that make tensors from none. Any of them may call another one.
void intercept_factory(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack);

}  // namespace remat
