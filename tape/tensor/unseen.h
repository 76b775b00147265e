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

/// While alive, no dispatch mode of Python's is on this thread.
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

/// While alive, ops are nobody's but ours.
///
/// Note [Unseen copies]: what makes another tensor on the same memory (tensor_data(), detach(), a
/// view) calls a dispatch mode too, as `aten::detach`, and a mode's handler may call anything. A
/// plain program has no such op, and a replay others than its forward.
class Unseen {
 private:
  InterceptionOff off_;
  DispatchModesOff modes_;
};

/// As Unseen, for ops on memory: without a graph.
class UnseenBelowAutograd {
 private:
  Unseen unseen_;
  c10::InferenceMode normal_{false};
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

/// tensor.tensor_data(), unseen.
inline at::Tensor tensor_data(const at::Tensor& tensor) {
  const Unseen unseen;
  return tensor.tensor_data();
}

/// tensor.variable_data(), unseen.
inline at::Tensor variable_data(const at::Tensor& tensor) {
  const Unseen unseen;
  return at::Tensor(libtorch_variable_hooks().variable_data(tensor));
}

}  // namespace remat
