// SPDX-License-Identifier: BSD-3-Clause

// Runs ops on placeholders. Ops on dry tensors run by Meta, dry or composite kernels. Ops on the
// placeholder of a result run only if they need nothing but its metadata.
#include <remat/placeholder/placeholder_op.h>

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>

#include <string>

#include <remat/placeholder/op_facts.h>
#include <remat/placeholder/placeholder_impl.h>

#include "dry_kernels.h"
#include "meta_call.h"

namespace remat {
namespace {

using c10::DispatchKey;
using torch::jit::Stack;

/// True if LibTorch tags `op` as writing its results into arguments whose shape may change. The tag
/// exists since 2.11.
template <class Tag = at::Tag>
bool is_out_variant(const c10::OperatorHandle& op) {
  if constexpr (requires { Tag::out_variant; }) {
    return op.hasTag(Tag::out_variant);
  } else {
    return false;
  }
}

bool is_written(const c10::OperatorHandle& op, size_t argument) {
  const c10::AliasInfo* const alias = op.schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

/// Always throws ValueError: `op` got a dry tensor and a tensor that is not dry.
[[noreturn]] void throw_mixed(const c10::OperatorHandle& op, const at::Tensor& dry,
                              const at::Tensor& other) {
  TORCH_CHECK_VALUE(false, "[placeholder] ", full_name(op),
                    ": expected all tensors on remat_meta (0-dim ones that are only read "
                    "excepted), got ",
                    describe_tensor(dry), " and ", describe_tensor(other),
                    ". Move all of the model and its inputs with .to(\"remat_meta\"), or none.");
}

/// Throws ValueError if `op` gets real tensors together with `dry`, because shapes may depend on a
/// real tensor's values. A 0-dim tensor may be real if the op only reads it.
void check_not_mixed(const c10::OperatorHandle& op, const at::Tensor& dry, const Stack& stack) {
  visit_argument_tensors(op, stack, [&](size_t index, const at::Tensor& tensor) {
    if (!tensor.defined() || is_placeholder(tensor)) return;
    if (tensor.dim() > 0 || is_written(op, index)) throw_mixed(op, dry, tensor);
  });
}

/// True if an index of aten::index is a mask. The op has the tag dynamic_output_shape, but the
/// shape of its result depends on data only if there is a mask.
bool has_mask_indices(const c10::OperatorHandle& op, const Stack& stack) {
  bool found = false;
  visit_argument_tensors(op, stack, [&](size_t index, const at::Tensor& tensor) {
    if (index == 0 || !tensor.defined()) return;
    found = found || tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
  });
  return found;
}

bool needs_data(const c10::OperatorHandle& op, const Stack& stack) {
  if (op.hasTag(at::Tag::data_dependent_output)) return true;
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  return op.schema().name() != "aten::index" || has_mask_indices(op, stack);
}

/// Runs aten::copy_, _copy_from and _copy_from_and_resize; returns false for other ops. A copy into
/// a dry tensor discards the data; a copy from a dry tensor into a real one throws.
bool run_copy(const c10::OperatorHandle& op, const at::Tensor& dry, Stack& stack) {
  const std::string& name = op.schema().name();
  const bool is_copy = name == "aten::copy_";
  if (!is_copy && name != "aten::_copy_from" && name != "aten::_copy_from_and_resize") return false;
  const size_t first = stack.size() - op.schema().arguments().size();
  at::Tensor target = stack[first + (is_copy ? 0 : 1)].toTensor();
  const at::Tensor source = stack[first + (is_copy ? 1 : 0)].toTensor();
  if (!is_placeholder(target)) throw_placeholder_access(full_name(op), placeholder_info(dry));
  TORCH_CHECK_VALUE(at::is_expandable_to(source.sizes(), target.sizes()), "[placeholder] ",
                    full_name(op), ": expected a source that can be expanded to the target, ",
                    describe_tensor(target), ", got ", describe_tensor(source),
                    ". Check the shapes.");
  stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  stack.emplace_back(std::move(target));
  return true;
}

/// Runs aten::equal on two tensors with the same memory and layout, which LibTorch calls equal
/// without reading them. Returns false for other ops, and for tensors whose data would decide.
bool run_equal(const c10::OperatorHandle& op, Stack& stack) {
  if (op.schema().name() != "aten::equal") return false;
  const at::Tensor& a = torch::jit::peek(stack, 0, 2).toTensor();
  const at::Tensor& b = torch::jit::peek(stack, 1, 2).toTensor();
  const bool same = PlaceholderStorage::of(a) == PlaceholderStorage::of(b) &&
                    a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
                    a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
  if (!same) return false;
  torch::jit::drop(stack, 2);
  stack.emplace_back(true);
  return true;
}

template <class Kernel>
void run_on_meta(const c10::OperatorHandle& op, Stack& stack, Numbers numbers,
                 const Kernel& kernel) {
  MetaCall call(op, stack);
  call.replace_arguments(numbers);
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    kernel();
  }
  call.replace_results();
}

/// Runs an op that only writes its results into arguments and keeps their shapes, so that nothing
/// is to be computed. Returns false for other ops.
bool run_in_place(const c10::OperatorHandle& op, Stack& stack) {
  if (!returns_only_written(op.schema()) || is_out_variant(op)) return false;
  const auto& schema = op.schema();
  const size_t first = stack.size() - schema.arguments().size();
  Stack written;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].is_out()) return false;
    if (is_written(op, i)) written.push_back(stack[first + i]);
  }
  if (!schema.returns().empty() && written.size() != schema.returns().size()) return false;
  stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  if (!schema.returns().empty()) stack.insert(stack.end(), written.begin(), written.end());
  return true;
}

/// Runs `op` without data: its results get shapes and dtypes. `dry` is one of the dry arguments.
void run_dry_op(const c10::OperatorHandle& op, const at::Tensor& dry, Stack& stack) {
  if (run_copy(op, dry, stack)) return;
  check_not_mixed(op, dry, stack);
  if (run_equal(op, stack)) return;
  if (needs_data(op, stack)) throw_placeholder_access(full_name(op), placeholder_info(dry));
  if (chooses_device(op.schema()) && run_composite(op, stack)) return;
  if (const auto kernel = find_dry_kernel(op))
    return run_on_meta(op, stack, Numbers::kToMeta, [&] { kernel(stack); });
  if (op.hasKernelForDispatchKey(DispatchKey::Meta) || returns_view(op.schema())) {
    return run_on_meta(op, stack, Numbers::kKeep,
                       [&] { op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::Meta), &stack); });
  }
  if (run_composite(op, stack) || run_in_place(op, stack)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[placeholder] ", full_name(op),
      ": expected an op with a Meta kernel, got one without, on ", describe_tensor(dry),
      ". Register a kernel for the dispatch key Meta that computes shapes.");
}

bool has_our_key(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has_backend(c10::BackendComponent::PrivateUse1Bit);
}

constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

bool is_view_op(const c10::OperatorHandle& op, OpFacts facts) {
  if (op.hasTag(at::Tag::inplace_view)) return !facts.has(OpFact::kChangesMemory);
  return returns_view(op.schema()) || facts.has(OpFact::kUndeclaredView);
}

/// Runs views and metadata ops on a result's placeholder; for other ops throws as
/// throw_placeholder_access(op, info) does.
void run_result_op(const c10::OperatorHandle& op, const PlaceholderInfo& info,
                   torch::jit::Stack& stack) {
  const OpFacts facts = op_facts(op.operator_name());
  if (facts.has(OpFact::kMetadata)) {
    const bool ran = run_composite(op, stack);
    TORCH_INTERNAL_ASSERT(ran, full_name(op), " has no composite kernel");
    return;
  }
  // The op does nothing here, because a placeholder has no memory that the allocator could track.
  if (facts.has(OpFact::kWritesNoData))
    return torch::jit::drop(stack, op.schema().arguments().size());
  if (!is_view_op(op, facts)) throw_placeholder_access(full_name(op), info);
  MetaCall call(op, stack);
  call.replace_arguments(Numbers::kKeep);
  op.redispatchBoxed(kMeta, &stack);
  if (call.made_storage()) throw_placeholder_access(full_name(op), info);
  call.replace_results();
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
