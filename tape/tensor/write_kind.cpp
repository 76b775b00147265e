// SPDX-License-Identifier: BSD-3-Clause

// LibTorch's ops that write and do not read.
#include "write_kind.h"

#include <string_view>
#include <unordered_set>

namespace remat {
namespace {

using Names = std::unordered_set<std::string_view>;

bool overwrites(std::string_view name) {
  static const Names& names = *new Names{
      "aten::copy_",         "aten::fill_",   "aten::zero_",       "aten::normal_",
      "aten::uniform_",      "aten::random_", "aten::bernoulli_",  "aten::exponential_",
      "aten::geometric_",    "aten::cauchy_", "aten::log_normal_", "aten::_foreach_zero_",
      "aten::_foreach_copy_"};
  return names.contains(name);
}

/// The position of the argument `accumulate` of ops that write elements by their indices; 0: there
/// is none.
size_t accumulate_argument(std::string_view name) {
  const bool has_one =
      name == "aten::index_put_" || name == "aten::_index_put_impl_" || name == "aten::put_";
  return has_one ? 3 : 0;
}

bool overwrites_part(std::string_view name, std::string_view overload) {
  static const Names& names = *new Names{"aten::index_copy_", "aten::index_fill_",
                                         "aten::masked_fill_", "aten::masked_scatter_"};
  return names.contains(name) ||
         (name == "aten::scatter_" && (overload == "src" || overload == "value"));
}

}  // namespace

WriteKind write_kind(const OpCall& call, size_t i) {
  if (i != 0 || call.info().is_of_library()) return WriteKind::kReads;
  const c10::OperatorName& op = call.info().operator_name();
  if (overwrites(op.name)) return WriteKind::kWhole;
  if (overwrites_part(op.name, op.overload_name)) return WriteKind::kPart;
  const size_t accumulate = accumulate_argument(op.name);
  if (accumulate == 0 || !call.argument(accumulate).isBool()) return WriteKind::kReads;
  return call.argument(accumulate).toBool() ? WriteKind::kReads : WriteKind::kPart;
}

}  // namespace remat
