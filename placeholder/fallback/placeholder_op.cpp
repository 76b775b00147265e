// SPDX-License-Identifier: BSD-3-Clause

// Choosing between the two kinds of placeholder for an op.
#include <remat/placeholder/op_facts.h>
#include <remat/placeholder/placeholder_op.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>

#include <remat/placeholder/placeholder_impl.h>

#include "argument_tensors.h"
#include "dry_op.h"
#include "result_op.h"

namespace remat {
namespace {

bool has_our_key(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has_backend(c10::BackendComponent::PrivateUse1Bit);
}

}  // namespace

bool has_placeholder_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool found = false;
  visit_argument_tensors(op, stack, [&found](size_t /*index*/, const at::Tensor& tensor) {
    found = found || (has_our_key(tensor) && is_placeholder(tensor));
  });
  return found;
}

void run_placeholder_op(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                        torch::jit::Stack* stack) {
  at::Tensor result;
  at::Tensor dry;
  visit_argument_tensors(op, *stack, [&](size_t /*index*/, const at::Tensor& tensor) {
    const PlaceholderStorage* const storage = PlaceholderStorage::of(tensor);
    if (!storage) return;
    (storage->info().kind == PlaceholderKind::kResult ? result : dry) = tensor;
  });
  TORCH_INTERNAL_ASSERT(result.defined() || dry.defined(), full_name(op));
  if (result.defined() && dry.defined()) throw_mixed(op, dry, result);
  if (result.defined()) return run_result_op(op, placeholder_info(result), *stack);
  run_dry_op(op, dry, *stack);
}

}  // namespace remat
