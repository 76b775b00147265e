// SPDX-License-Identifier: BSD-3-Clause

// Registering the fallback, and sending each op that has a placeholder to the placeholders'
// handler.
#include "private_use_fallback.h"

#include <c10/core/DispatchKey.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <remat/placeholder/op_facts.h>
#include <remat/placeholder/placeholder_op.h>

namespace remat {
namespace {

using c10::DispatchKey;
using torch::jit::Stack;

[[noreturn]] void refuse_plain_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[placeholder] ", op.operator_name(),
      ": expected a placeholder among the arguments, "
      "got none on ",
      keys.highestBackendKey(),
      ". Tensors of this device were not made by remat, or the op has no tensor argument that "
      "says where it runs.");
}

void private_use_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (has_placeholder_argument(op, *stack)) return run_placeholder_op(op, keys, stack);
  refuse_plain_op(op, keys);
}

torch::CppFunction boxed_fallback() {
  return torch::CppFunction::makeFromBoxedFunction<&private_use_fallback>();
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const c10::Argument& argument) {
                       return argument.type()->repr_str().find("Tensor") != std::string::npos;
                     });
}

bool is_shadowed_by_composite(const c10::OperatorHandle& op) {
  return (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) &&
         !op.hasKernelForDispatchKey(DispatchKey::PrivateUse1) && takes_tensors(op.schema()) &&
         !chooses_device(op.schema());
}

void register_by_name() {
  torch::Library& library = keep_library("aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (op && is_shadowed_by_composite(*op))
      library.impl(c10::toString(name).c_str(), boxed_fallback());
  }
}

void register_fallback() {
  torch::Library& library = keep_library("_", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  try {
    library.fallback(boxed_fallback());
  } catch (const c10::Error& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "[remat] PrivateUse1: expected no backend fallback on this dispatch key, got one: ",
        error.what_without_backtrace(), ". Only one library in a process can use it.");
  }
}

}  // namespace

void install_private_use_fallback() {
  static std::mutex mutex;
  static bool installed = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (installed) return;
  register_fallback();
  register_by_name();
  installed = true;
}

torch::Library& keep_library(const char* name, c10::DispatchKey key, const char* file,
                             uint32_t line) {
  static std::mutex mutex;
  // Leaked, because LibTorch may be unloaded when statics are destroyed.
  static auto* const kept = new std::vector<std::unique_ptr<torch::Library>>();
  const std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, name, key, file, line));
  return *kept->back();
}

}  // namespace remat
