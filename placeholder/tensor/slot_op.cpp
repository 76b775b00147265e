// SPDX-License-Identifier: BSD-3-Clause

// Slot placeholders: what metadata can answer.
#include "slot_op.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/DispatchKeySet.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "composite_kernel.h"
#include "meta_call.h"
#include "schema_facts.h"

namespace remat {
namespace {

constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

// No schema tells that these read sizes, strides and dtype only. Sorted.
constexpr std::array<std::string_view, 23> kMetadataOps = {
    "aten::_assert_tensor_metadata",
    "aten::_has_compatible_shallow_copy_type",
    "aten::_has_same_storage_numel",
    "aten::_new_zeros_with_same_feature_meta",
    "aten::empty_like",
    "aten::full_like",
    "aten::is_pinned",
    "aten::is_same_size",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::new_full",
    "aten::new_ones",
    "aten::new_zeros",
    "aten::ones_like",
    "aten::rand_like",
    "aten::randint_like",
    "aten::randn_like",
    "aten::sym_constrain_range",
    "aten::sym_numel",
    "aten::sym_size",
    "aten::sym_storage_offset",
    "aten::sym_stride",
    "aten::zeros_like",
};

// View ops whose schemas do not say so.
constexpr std::array<std::string_view, 1> kUndeclaredViews = {"aten::_unsafe_view"};

// They change geometry, as the tag says, but also the memory.
constexpr std::array<std::string_view, 3> kMemoryChanges = {"aten::resize_", "aten::resize_as_",
                                                            "aten::set_"};

template <size_t n>
bool contains(const std::array<std::string_view, n>& sorted, std::string_view name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

bool is_view_op(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (op.hasTag(at::Tag::inplace_view)) return !contains(kMemoryChanges, name);
  return returns_view(op.schema()) || contains(kUndeclaredViews, name);
}

bool runs_on_metadata(const c10::OperatorHandle& op) {
  return contains(kMetadataOps, op.schema().name());
}

void run_metadata_kernel(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const bool ran = run_composite(op, stack);
  TORCH_INTERNAL_ASSERT(ran, full_name(op), " has no composite kernel");
}

}  // namespace

void run_slot_op(const c10::OperatorHandle& op, const PlaceholderInfo& info,
                 torch::jit::Stack& stack) {
  if (runs_on_metadata(op)) return run_metadata_kernel(op, stack);
  if (!is_view_op(op)) throw_placeholder_access(full_name(op), info);
  MetaCall call(op, stack);
  call.replace_arguments(Numbers::kKeep);
  op.redispatchBoxed(kMeta, &stack);
  if (call.made_storage()) throw_placeholder_access(full_name(op), info);
  call.replace_results();
}

}  // namespace remat
