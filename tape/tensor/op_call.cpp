// SPDX-License-Identifier: BSD-3-Clause

// Facts about an op from its schema.
#include <remat/tape/op_call.h>

#include <ATen/core/enum_tag.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "unmarked_writes.h"

namespace remat {
namespace {

/// True for the cast that autocast calls and for the op that implements it.
bool makes_cast(const c10::OperatorName& op) {
  return op.name == "aten::_to_copy" || (op.name == "aten::to" && op.overload_name == "dtype");
}

/// True if the first argument is a tensor and no other argument has tensors.
bool has_one_tensor(const c10::FunctionSchema& schema) {
  const auto is_tensor = [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::TensorType::get());
  };
  const auto& arguments = schema.arguments();
  return !arguments.empty() && is_tensor(arguments[0]) &&
         std::all_of(arguments.begin() + 1, arguments.end(), [](const c10::Argument& argument) {
           return argument.type()->str().find("Tensor") == std::string::npos;
         });
}

bool returns_object(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.type()->kind() == c10::TypeKind::ClassType;
  });
}

bool names_matrices(std::string_view op) {
  static constexpr std::string_view kParts[] = {
      "mm",   "mv",  "mat",  "dot",  "conv",   "linear", "einsum",   "rnn",        "lstm", "gru",
      "attn", "att", "dist", "solv", "linalg", "invers", "cholesky", "svd",        "qr",   "det",
      "lu",   "ger", "addr", "eig",  "lstsq",  "cov",    "corr",     "transformer"};
  return std::any_of(std::begin(kParts), std::end(kParts), [&](std::string_view part) {
    return op.find(part) != std::string_view::npos;
  });
}

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op)
    : op_(op),
      name_hash_(std::hash<std::string>{}(name())),
      facts_(op_facts(op.operator_name())),
      argument_count_(op.schema().arguments().size()),
      return_count_(op.schema().returns().size()),
      training_argument_(argument_count_),
      changes_metadata_(op.hasTag(at::Tag::inplace_view)),
      is_cast_(makes_cast(op.operator_name())),
      is_lift_(op.operator_name().name == "aten::lift_fresh"),
      may_draw_(op.hasTag(at::Tag::nondeterministic_seeded)),
      is_of_library_(!op.operator_name().name.starts_with("aten::")),
      is_communication_(remat::is_communication(op.operator_name().name)),
      is_unshard_(op.operator_name().name.starts_with("fsdp::")),
      is_view_(returns_view(op.schema())),
      makes_objects_(returns_object(op.schema())),
      is_pointwise_(op.hasTag(at::Tag::pointwise)),
      may_multiply_matrices_(is_of_library_ || names_matrices(op.operator_name().name)) {
  const UnmarkedWrites unmarked = unmarked_writes(op.operator_name().name);
  written_ |= unmarked.always;
  hidden_writes_ = unmarked.in_training;
  const auto& arguments = op.schema().arguments();
  for (const auto i : c10::irange(arguments.size())) {
    const auto* const alias = arguments[i].alias_info();
    if (alias && alias->isWrite() && i < 64) written_ |= uint64_t{1} << i;
    if (arguments[i].name() == "training") training_argument_ = i;
  }
  const bool is_metadata_query =
      facts_.has(OpFact::kMetadata) || wraps_collective(op.operator_name().name);
  reads_data_ = writes() || facts_.has(OpFact::kHandsOut) || !(is_view_ || is_metadata_query);
  is_plain_view_ =
      is_view_ && !writes() && !is_lift_ && !is_of_library_ && has_one_tensor(op.schema());
  needs_memory_ = reads_data_ || (is_view_ && !facts_.has(OpFact::kKeepsStrides));
}

std::string OpInfo::name() const {
  return c10::toString(op_.operator_name());
}

void OpCall::collect() const {
  tensors_.clear();
  is_collected_ = true;
  for (size_t i = 0; i < info_->argument_count(); ++i) {
    for_each_tensor(argument(i), [&](const at::Tensor& tensor) {
      tensors_.push_back({i, &tensor, memory_of(tensor)});
    });
  }
}

}  // namespace remat
