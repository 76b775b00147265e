// SPDX-License-Identifier: BSD-3-Clause

#include "value_words.h"

#include <bit>
#include <cstdint>
#include <sstream>

namespace remat::detail {
namespace {

std::string words_of_double(double value) {
  std::ostringstream words;
  words << value;
  return words.str();
}

/// The text of a value that is no list.
std::string words_of_scalar(const Recording& recording, const RecordedValue& value) {
  switch (value.kind) {
    case ValueKind::kNone:
      return "none";
    case ValueKind::kInt:
      return std::to_string(static_cast<int64_t>(value.bits));
    case ValueKind::kDouble:
      return words_of_double(std::bit_cast<double>(value.bits));
    case ValueKind::kBool:
      return value.bits != 0 ? "true" : "false";
    case ValueKind::kText:
      if (value.bits < recording.strings.size()) return "'" + recording.strings[value.bits] + "'";
      break;
    case ValueKind::kList:
      return "[]";
    case ValueKind::kOther:
      break;
  }
  return "...";
}

}  // namespace

// Lists are kept on an explicit stack, because a damaged recording may nest them arbitrarily deep.
std::string words_of_values(const Recording& recording, const std::vector<RecordedValue>& values) {
  std::string words;
  std::vector<uint64_t> missing;  // elements missing in each open list
  for (const RecordedValue& value : values) {
    if (!words.empty() && words.back() != '[') words += ", ";
    if (value.kind == ValueKind::kList && value.bits > 0) {
      words += "[";
      missing.push_back(value.bits);
      continue;
    }
    words += words_of_scalar(recording, value);
    while (!missing.empty() && --missing.back() == 0) {
      words += "]";
      missing.pop_back();
    }
  }
  return words + std::string(missing.size(), ']');
}

}  // namespace remat::detail
