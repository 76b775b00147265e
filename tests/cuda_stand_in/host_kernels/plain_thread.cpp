// SPDX-License-Identifier: BSD-3-Clause

// Sets a thread's state for host kernels and puts it back.
#include "plain_thread.h"

#include <utility>

namespace cuda_stand_in {
namespace {

c10::impl::LocalDispatchKeySet plain_keys() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.included_ = c10::default_included_set;
  keys.excluded_ = c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  return keys;
}

}  // namespace

PlainThread::PlainThread()
    : debug_info_(c10::ThreadLocalDebugInfo::current()),
      autograd_state_(c10::AutogradState::get_tls_state()),
      keys_(plain_keys()) {
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(nullptr);
  c10::AutogradState state = autograd_state_;
  state.set_grad_mode(false);
  state.set_inference_mode(false);
  c10::AutogradState::set_tls_state(state);
}

PlainThread::~PlainThread() {
  c10::AutogradState::set_tls_state(autograd_state_);
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::move(debug_info_));
}

}  // namespace cuda_stand_in
