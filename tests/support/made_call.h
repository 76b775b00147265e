// SPDX-License-Identifier: BSD-3-Clause

// A call of an op that no dispatcher has seen, as a region sees it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <remat/engine/op_call.h>

#include <utility>

namespace remat {

/// Holds an op and its arguments. The op runs only when run() is called.
class MadeCall {
 public:
  MadeCall(const char* name, const char* overload, torch::jit::Stack arguments)
      : info_(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)),
        stack_(std::move(arguments)) {}
  MadeCall(const MadeCall&) = delete;
  MadeCall& operator=(const MadeCall&) = delete;

  const OpInfo& info() const { return info_; }
  OpCall& get() { return call_; }
  void run() { info_.op().callBoxed(stack_); }

 private:
  OpInfo info_;
  torch::jit::Stack stack_;
  OpCall call_{info_, stack_};
};

}  // namespace remat
