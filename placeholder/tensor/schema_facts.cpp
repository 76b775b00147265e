// SPDX-License-Identifier: BSD-3-Clause

// Questions to schemas.
#include "schema_facts.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace remat {
namespace {

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

}  // namespace

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
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const c10::Argument& argument) { return argument.name() == "device"; });
}

}  // namespace remat
