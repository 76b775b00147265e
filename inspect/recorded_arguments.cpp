// SPDX-License-Identifier: BSD-3-Clause

#include "recorded_arguments.h"

#include <ATen/core/List.h>

#include <bit>
#include <cstdint>

namespace remat {
void RecordedArguments::add(const c10::IValue& value, OpEvent& op) {
  if (value.isTensor()) {
    op.arguments.push_back(layouts_.of(value.toTensor()));
  } else if (value.isInt()) {
    op.values.push_back({ValueKind::kInt, static_cast<uint64_t>(value.toInt())});
  } else if (value.isDouble()) {
    op.values.push_back({ValueKind::kDouble, std::bit_cast<uint64_t>(value.toDouble())});
  } else if (value.isBool()) {
    op.values.push_back({ValueKind::kBool, value.toBool() ? 1U : 0U});
  } else if (value.isNone()) {
    op.values.push_back({ValueKind::kNone, 0});
  } else if (value.isString()) {
    op.values.push_back({ValueKind::kText, writer_.string(value.toStringRef())});
  } else if (value.isDevice()) {
    op.values.push_back({ValueKind::kText, writer_.string(value.toDevice().str())});
  } else if (value.isList()) {
    add_list(value, op);
  } else {
    op.values.push_back({ValueKind::kOther, 0});
  }
}

void RecordedArguments::add_list(const c10::IValue& list, OpEvent& op) {
  const size_t place = op.values.size();
  op.values.push_back({ValueKind::kList, 0});
  for (const c10::IValue& item : list.toListRef()) {
    if (item.isTensor()) {
      op.arguments.push_back(layouts_.of(item.toTensor()));
    } else {
      add(item, op);
    }
  }
  op.values[place].bits = op.values.size() - place - 1;
}

void RecordedArguments::add_tensors(const c10::IValue& value, std::vector<RecordedTensor>& to) {
  if (value.isTensor()) {
    to.push_back(layouts_.of(value.toTensor()));
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor() && !item.isNone()) return;
      to.push_back(item.isTensor() ? layouts_.of(item.toTensor()) : RecordedTensor{});
    }
  }
}

}  // namespace remat
