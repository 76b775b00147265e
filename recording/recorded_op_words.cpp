// SPDX-License-Identifier: BSD-3-Clause

#include "recorded_op_words.h"

#include <bit>
#include <sstream>

namespace remat::detail {
namespace {

constexpr size_t kLongText = 600;

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

// Lists are kept on an explicit stack, because a damaged recording may nest them arbitrarily deep.
/// "[1, -2], 'mean', 0.5, true, none"
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

std::string origin_words(const TensorOrigin& origin, uint32_t stream) {
  if (origin.kind == OriginKind::kUnknown) return "";
  if (origin.kind == OriginKind::kOutside) {
    return origin.number == TensorOrigin::kElsewhere
               ? " from elsewhere"
               : " from outside #" + std::to_string(origin.number);
  }
  std::string words = " of op " + std::to_string(origin.number);
  if (origin.stream == stream) return words;
  const uint32_t kind = origin.stream % kStreamKinds;
  if (kind == kBackwardStream) words += " of backward";
  if (kind == kReplayStream) words += " of replays";
  const uint32_t thread = origin.stream / kStreamKinds;
  if (thread != stream / kStreamKinds) words += " on thread " + std::to_string(thread);
  return words;
}

std::string tensor_words(const Recording& recording, const RecordedTensor& tensor,
                         const TensorOrigin& origin, uint32_t stream) {
  std::string words = recording.words_of(tensor);
  if (tensor.layout == 0) return words;
  const RecordedLayout& layout = recording.layouts[tensor.layout];
  if (!layout.strides.empty()) words += " strided";
  if (tensor.offset != 0) words += " at element " + std::to_string(tensor.offset);
  words += " on " + recording.text(layout.device);
  if (layout.requires_grad) words += " requires grad";
  return words + origin_words(origin, stream);
}

}  // namespace

std::string op_words(const Recording& recording, size_t op,
                     const std::vector<TensorOrigin>& origins, uint32_t stream) {
  const OpEvent& event = recording.ops[op];
  std::string words = recording.text(event.name) + "(";
  for (size_t i = 0; i < event.arguments.size() && words.size() < kLongText; ++i) {
    const TensorOrigin origin = i < origins.size() ? origins[i] : TensorOrigin();
    words += (i > 0 ? ", " : "") + tensor_words(recording, event.arguments[i], origin, stream);
  }
  if (!event.arguments.empty() && !event.values.empty()) words += ", ";
  words += words_of_values(recording, event.values);
  return words.size() > kLongText ? words.substr(0, kLongText) + "...)" : words + ")";
}

}  // namespace remat::detail
