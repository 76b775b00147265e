// SPDX-License-Identifier: BSD-3-Clause

// The state of a thread while host kernels run on it: nothing but plain tensors exists.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace cuda_stand_in {

/// Host kernels run on whichever thread waits for a stream, so they must not see that thread's
/// modes, and profilers, recorders and memory meters of that thread must not see them.
class PlainThread {
 public:
  PlainThread();
  ~PlainThread();
  PlainThread(const PlainThread&) = delete;
  PlainThread& operator=(const PlainThread&) = delete;

 private:
  class Silence final : public c10::WarningHandler {
   public:
    void process(const c10::Warning& /*warning*/) override {}
  };

  std::shared_ptr<c10::ThreadLocalDebugInfo> debug_info_;
  c10::AutogradState autograd_state_;
  c10::impl::ForceDispatchKeyGuard keys_;
  at::DisableRecordFunctionGuard no_record_functions_;
  Silence silence_;
  c10::WarningUtils::WarningHandlerGuard no_warnings_{&silence_};
};

}  // namespace cuda_stand_in
