// SPDX-License-Identifier: BSD-3-Clause

// Hiding remat's own ops from scopes and from Python's dispatch modes.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/VariableHooksInterface.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/macros/Macros.h>

#include <optional>
#include <utility>

#include <remat/engine/interception_bits.h>

namespace remat {

/// LibTorch's own VariableHooks, which notify no scope: see Note [Data hooks]. Usable from any
/// thread.
const at::impl::VariableHooksInterface& libtorch_variable_hooks();

/// While alive, this thread runs ops without interception and without Python dispatch modes.
///
/// Note [Unseen copies]: ops that alias a tensor's memory (tensor_data(), detach(), views) also
/// reach dispatch modes, as `aten::detach`, and a mode's handler may call anything. Modes must not
/// see remat's aliasing ops, because a plain program has none, and a replay has other ones than its
/// forward.
class Unseen {
 public:
  Unseen() {
    if (C10_LIKELY(Tls::stack_len() == 0)) return;
    modes_.emplace(Tls::get_state());
    Tls::set_state({});
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
  ~Unseen() {
    if (modes_) Tls::set_state(std::move(*modes_));
  }

 private:
  using Tls = c10::impl::TorchDispatchModeTLS;
  InterceptionOff off_;
  std::optional<Tls> modes_;  // The hidden dispatch modes.
};

/// Like Unseen; in addition, autograd records no graph and counts no versions.
class UnseenBelowAutograd {
 private:
  Unseen unseen_;
  c10::InferenceMode normal_{false};
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

inline at::Tensor tensor_data(const at::Tensor& tensor) {
  const Unseen unseen;
  return tensor.tensor_data();
}

inline at::Tensor variable_data(const at::Tensor& tensor) {
  const Unseen unseen;
  return at::Tensor(libtorch_variable_hooks().variable_data(tensor));
}

}  // namespace remat
