// SPDX-License-Identifier: BSD-3-Clause

#include "recorded_op_words.h"

#include "value_words.h"

namespace remat::detail {
namespace {

constexpr size_t kLongText = 600;

std::string origin_words(const TensorOrigin& origin, uint32_t stream) {
  if (origin.kind == OriginKind::kUnknown) return "";
  if (origin.kind == OriginKind::kOutside) {
    return origin.number == TensorOrigin::kElsewhere
               ? " from elsewhere"
               : " from outside #" + std::to_string(origin.number);
  }
  std::string words = " of op " + std::to_string(origin.number);
  if (origin.stream == stream) return words;
  const uint32_t kind = origin.stream % StreamKind::kKinds;
  if (kind == StreamKind::kBackward) words += " of backward";
  if (kind == StreamKind::kReplays) words += " of replays";
  const uint32_t thread = origin.stream / StreamKind::kKinds;
  if (thread != stream / StreamKind::kKinds) words += " on thread " + std::to_string(thread);
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
