// SPDX-License-Identifier: BSD-3-Clause

// Ops on placeholders of results that need metadata only.
#include "result_op.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/DispatchKeySet.h>

#include <remat/placeholder/op_facts.h>

#include "composite_kernel.h"
#include "meta_call.h"

namespace remat {
namespace {

constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

bool is_view_op(const c10::OperatorHandle& op, OpFacts facts) {
  if (op.hasTag(at::Tag::inplace_view)) return !facts.has(OpFact::kChangesMemory);
  return returns_view(op.schema()) || facts.has(OpFact::kUndeclaredView);
}

void run_metadata_kernel(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const bool ran = run_composite(op, stack);
  TORCH_INTERNAL_ASSERT(ran, full_name(op), " has no composite kernel");
}

}  // namespace

void run_result_op(const c10::OperatorHandle& op, const PlaceholderInfo& info,
                   torch::jit::Stack& stack) {
  const OpFacts facts = op_facts(op.operator_name());
  if (facts.has(OpFact::kMetadata)) return run_metadata_kernel(op, stack);
  // There is no memory for the allocator to track.
  if (facts.has(OpFact::kWritesNoData))
    return torch::jit::drop(stack, op.schema().arguments().size());
  if (!is_view_op(op, facts)) throw_placeholder_access(full_name(op), info);
  MetaCall call(op, stack);
  call.replace_arguments(Numbers::kKeep);
  op.redispatchBoxed(kMeta, &stack);
  if (call.made_storage()) throw_placeholder_access(full_name(op), info);
  call.replace_results();
}

}  // namespace remat
