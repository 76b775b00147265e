// SPDX-License-Identifier: BSD-3-Clause

// The table of facts about ops, and queries about schemas.
#include <remat/placeholder/op_facts.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace remat {
namespace {

using Table = std::unordered_map<std::string_view, OpFacts>;

/// Facts hold for all overloads of an op.
Table make_table() {
  using enum OpFact;
  return {
      // Ops that read sizes, strides and dtype only. No schema says so.
      {"aten::_assert_tensor_metadata", kMetadata},
      {"aten::_has_compatible_shallow_copy_type", kMetadata},
      {"aten::_has_same_storage_numel", kMetadata},
      {"aten::_new_zeros_with_same_feature_meta", kMetadata},
      {"aten::full_like", kMetadata},
      // Tensor.__dlpack__() calls is_pinned() and no other op before it exports the memory.
      {"aten::is_pinned", kMetadata | kHandsOut},
      {"aten::is_same_size", kMetadata},
      {"aten::new_full", kMetadata},
      {"aten::new_ones", kMetadata},
      {"aten::new_zeros", kMetadata},
      {"aten::ones_like", kMetadata},
      {"aten::rand_like", kMetadata},
      {"aten::randint_like", kMetadata},
      {"aten::randn_like", kMetadata},
      {"aten::sym_constrain_range", kMetadata},
      {"aten::sym_is_contiguous", kMetadata},
      {"aten::sym_numel", kMetadata},
      {"aten::sym_size", kMetadata},
      {"aten::sym_storage_offset", kMetadata},
      {"aten::sym_stride", kMetadata},
      {"aten::zeros_like", kMetadata},
      {"prims::full_like", kMetadata},

      // Ops that allocate memory without values.
      {"aten::_empty_affine_quantized", kUninitialised},
      {"aten::_empty_per_channel_affine_quantized", kUninitialised},
      {"aten::empty", kUninitialised},
      {"aten::empty_like", kUninitialised | kMetadata},
      {"aten::empty_permuted", kUninitialised},
      {"aten::empty_quantized", kUninitialised},
      {"aten::empty_strided", kUninitialised},
      {"aten::new_empty", kUninitialised | kMetadata},
      {"aten::new_empty_strided", kUninitialised | kMetadata},

      // Views whose kernels read sizes and strides only. Other views call as_strided(), which
      // checks the size of the storage.
      {"aten::_conj", kKeepsStrides},
      {"aten::_neg_view", kKeepsStrides},
      {"aten::_reshape_alias", kKeepsStrides},
      {"aten::alias", kKeepsStrides | kShowsAll},
      {"aten::detach", kKeepsStrides | kShowsAll},
      {"aten::expand", kShowsAllWithSizes},
      {"aten::view", kKeepsStrides | kShowsAllWithSizes},
      {"aten::view_as_complex", kKeepsStrides},
      {"aten::view_as_real", kKeepsStrides},

      // Ops that make a view, or put a tensor on memory, with a separate version counter.
      {"aten::_unsafe_view", kUndeclaredView | kOtherVersions},
      {"aten::unsafe_split", kOtherVersions},
      {"aten::unsafe_split_with_sizes", kOtherVersions},

      // Ops that change a tensor's memory, not only its sizes. The tag inplace_view does not tell
      // them from ops such as squeeze_(), which have it, too.
      {"aten::resize_", kChangesMemory},
      {"aten::resize_as_", kChangesMemory},
      {"aten::resize_as_sparse_", kChangesMemory},
      {"aten::set_", kChangesMemory | kOtherVersions},
      {"aten::set_data", kChangesMemory},

      // Ops that write an argument without reading it. A schema says only that they write it.
      {"aten::_foreach_copy_", kOverwrites},
      {"aten::_foreach_zero_", kOverwrites},
      {"aten::bernoulli_", kOverwrites},
      {"aten::cauchy_", kOverwrites},
      {"aten::copy_", kOverwrites},
      {"aten::exponential_", kOverwrites},
      {"aten::fill_", kOverwrites},
      {"aten::geometric_", kOverwrites},
      {"aten::log_normal_", kOverwrites},
      {"aten::normal_", kOverwrites},
      {"aten::random_", kOverwrites},
      {"aten::uniform_", kOverwrites},
      {"aten::zero_", kOverwrites},
      {"aten::index_copy_", kOverwritesPart},
      {"aten::index_fill_", kOverwritesPart},
      {"aten::masked_fill_", kOverwritesPart},
      {"aten::masked_scatter_", kOverwritesPart},
      {"aten::_index_put_impl_", kAccumulates},
      {"aten::index_put_", kAccumulates},
      {"aten::put_", kAccumulates},

      // Kernels that save memory of empty() partly unfilled: rrelu leaves out the noise of positive
      // inputs, ctc_loss blanks between targets, and RNNs parts of a library's workspace.
      {"aten::rrelu_with_noise", kFills | kLeavesGaps},
      {"aten::rrelu_with_noise_", kFills | kLeavesGaps},
      {"aten::rrelu_with_noise_functional", kLeavesGaps},
      {"aten::_ctc_loss", kLeavesGaps},
      {"aten::_cudnn_rnn", kLeavesByteGaps},
      {"aten::miopen_rnn", kLeavesByteGaps},
      {"aten::mkldnn_rnn_layer", kLeavesByteGaps},

      {"aten::_make_dual", kMakesTangents},

      // The op only tells the allocator that a stream uses the memory.
      {"aten::record_stream", kWritesNoData},
  };
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

}  // namespace

OpFacts op_facts(const c10::OperatorName& op) {
  static const Table& table = *new Table(make_table());
  // Other overloads of scatter_ have an argument `reduce`, so they read what they write.
  if (op.name == "aten::scatter_" && (op.overload_name == "src" || op.overload_name == "value"))
    return OpFact::kOverwritesPart;
  const auto entry = table.find(op.name);
  return entry == table.end() ? OpFacts() : entry->second;
}

std::string full_name(const c10::OperatorHandle& op) {
  return c10::toString(op.operator_name());
}

bool returns_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& r) {
    return r.alias_info() && !r.alias_info()->isWrite();
  });
}

bool returns_only_written(const c10::FunctionSchema& schema) {
  return schema.is_mutable() &&
         std::all_of(schema.returns().begin(), schema.returns().end(), is_written);
}

bool chooses_device(const c10::FunctionSchema& schema) {
  return schema.argumentIndexWithName("device").has_value();
}

}  // namespace remat
