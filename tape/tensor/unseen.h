// SPDX-License-Identifier: BSD-3-Clause

// Hiding remat's own ops from scopes and from Python's dispatch modes.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/macros/Macros.h>

#include <optional>
#include <utility>

#include <remat/tape/interception_bits.h>
#include <remat/tape/libtorch_hooks.h>

namespace remat {

/// While alive, this thread has no Python dispatch modes.
class DispatchModesOff {
 public:
  DispatchModesOff() {
    if (C10_LIKELY(Tls::stack_len() == 0)) return;
    hidden_.emplace(Tls::get_state());
    Tls::set_state({});
  }
  DispatchModesOff(const DispatchModesOff&) = delete;
  DispatchModesOff& operator=(const DispatchModesOff&) = delete;
  ~DispatchModesOff() {
    if (hidden_) Tls::set_state(std::move(*hidden_));
  }

 private:
  using Tls = c10::impl::TorchDispatchModeTLS;
  std::optional<Tls> hidden_;
};

/// Runs ops without interception and without dispatch modes.
///
/// Note [Unseen copies]: ops that alias a tensor's memory (tensor_data(), detach(), views) also
/// reach dispatch modes, as `aten::detach`, and a mode's handler may call anything. A plain program
/// has no such op, and a replay has other ones than its forward.
class Unseen {
 private:
  InterceptionOff off_;
  DispatchModesOff modes_;
};

/// Like Unseen, for ops on memory: no graph is recorded.
class UnseenBelowAutograd {
 private:
  Unseen unseen_;
  c10::InferenceMode normal_{false};
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

/// Calls tensor.tensor_data() under Unseen.
inline at::Tensor tensor_data(const at::Tensor& tensor) {
  const Unseen unseen;
  return tensor.tensor_data();
}

/// Calls tensor.variable_data() under Unseen.
inline at::Tensor variable_data(const at::Tensor& tensor) {
  const Unseen unseen;
  return at::Tensor(libtorch_variable_hooks().variable_data(tensor));
}

}  // namespace remat
