// SPDX-License-Identifier: BSD-3-Clause

// Facts about an op from its schema, and tables of ops whose schemas lack alias marks.
#include <remat/engine/op_call.h>

#include <ATen/core/enum_tag.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>

#include <remat/engine/write_kind.h>

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

// Ops of normalisation, and the statistics that they write in training. Found by running LibTorch's
// op database on the CPU and comparing versions and bytes of unmarked arguments; for other devices,
// by reading LibTorch's sources.
constexpr std::array<std::pair<std::string_view, UnmarkedWrites>, 6> kOfTensorLibrary{{
    {"aten::native_batch_norm", {.in_training = 0b11000}},
    {"aten::cudnn_batch_norm", {.in_training = 0b11000}},
    {"aten::miopen_batch_norm", {.in_training = 0b11000}},
    {"aten::batch_norm_update_stats", {.in_training = 0b110}},
    {"aten::batch_norm_gather_stats", {.in_training = 0b11000}},
    {"aten::batch_norm_gather_stats_with_counts", {.in_training = 0b11000}},
}};

// Ops of c10d that write their first argument (a Tensor, a list of them, or a list of such lists),
// and may go on writing it after they have returned: see Note [Writes that go on].
constexpr std::array<std::string_view, 17> kCollectives{
    "allreduce_",
    "allreduce_coalesced_",
    "broadcast_",
    "reduce_",
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "gather_",
    "scatter_",
    "alltoall_",
    "alltoall_base_",
    "recv_",
    "recv_any_source_",
};

constexpr std::array<std::string_view, 4> kCommunication{
    "c10d::",
    "_c10d_functional::",
    "_c10d_functional_autograd::",
    "_dtensor::shard_dim_alltoall",
};

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op)
    : op_(op),
      name_hash_(std::hash<std::string>{}(name())),
      facts_(op_facts(op.operator_name())),
      argument_count_(op.schema().arguments().size()),
      return_count_(op.schema().returns().size()),
      training_argument_(argument_count_),
      dropout_argument_(argument_count_),
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
    if (!is_of_library_ && !writes_argument(0, false) && arguments[i].name() == "dropout_p")
      dropout_argument_ = i;
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

UnmarkedWrites unmarked_writes(std::string_view op) {
  constexpr std::string_view kC10d = "c10d::";
  if (op.starts_with(kC10d)) {
    const bool writes = std::find(kCollectives.begin(), kCollectives.end(),
                                  op.substr(kC10d.size())) != kCollectives.end();
    return {.always = writes ? uint64_t{1} : 0};
  }
  const auto* const entry = std::find_if(kOfTensorLibrary.begin(), kOfTensorLibrary.end(),
                                         [&](const auto& known) { return known.first == op; });
  return entry == kOfTensorLibrary.end() ? UnmarkedWrites{} : entry->second;
}

bool wraps_collective(std::string_view op) {
  return op == "_c10d_functional::_wrap_tensor_autograd";
}

bool is_communication(std::string_view op) {
  if (wraps_collective(op)) return false;
  return std::any_of(kCommunication.begin(), kCommunication.end(),
                     [&](std::string_view prefix) { return op.starts_with(prefix); });
}

WriteKind write_kind(const OpCall& call, size_t i) {
  if (i != 0) return WriteKind::kReads;
  const OpFacts facts = call.info().facts();
  if (facts.has(OpFact::kOverwrites)) return WriteKind::kWhole;
  if (facts.has(OpFact::kOverwritesPart)) return WriteKind::kPart;
  constexpr size_t kAccumulate = 3;
  const bool writes_part = facts.has(OpFact::kAccumulates) && call.argument(kAccumulate).isBool() &&
                           !call.argument(kAccumulate).toBool();
  return writes_part ? WriteKind::kPart : WriteKind::kReads;
}

}  // namespace remat
