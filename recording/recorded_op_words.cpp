// SPDX-License-Identifier: BSD-3-Clause

#include "recorded_op_words.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace remat::detail {
namespace {

constexpr size_t kLongText = 600;
constexpr size_t kDeepest = 8;  // of lists in lists

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

/// Of values one after the other, in which a list stands before its elements.
class ValueReader {
 public:
  ValueReader(const Recording& recording, const std::vector<RecordedValue>& values)
      : recording_(recording), values_(values) {}

  bool at_end() const { return next_ >= values_.size(); }

  std::string words(size_t depth = 0) {
    const RecordedValue& value = values_[next_++];
    switch (value.kind) {
      case ValueKind::kNone:
        return "None";
      case ValueKind::kInt:
        return std::to_string(static_cast<int64_t>(value.bits));
      case ValueKind::kDouble: {
        std::ostringstream text;
        text << std::bit_cast<double>(value.bits);
        return text.str();
      }
      case ValueKind::kBool:
        return value.bits != 0 ? "true" : "false";
      case ValueKind::kText:
        return "'" + recording_.text(static_cast<StringId>(value.bits)) + "'";
      case ValueKind::kList:
        return list_words(value.bits, depth);
      case ValueKind::kOther:
        break;
    }
    return "...";
  }

 private:
  std::string list_words(uint64_t elements, size_t depth) {
    std::string words = "[";
    for (uint64_t i = 0; i < elements && !at_end(); ++i) {
      if (depth >= kDeepest || words.size() > kLongText) {
        next_ += std::min<uint64_t>(elements - i, values_.size() - next_);
        return words + "...]";
      }
      words += (i > 0 ? ", " : "") + this->words(depth + 1);
    }
    return words + "]";
  }

  const Recording& recording_;
  const std::vector<RecordedValue>& values_;
  size_t next_ = 0;
};

}  // namespace

std::string op_words(const Recording& recording, size_t op,
                     const std::vector<TensorOrigin>& origins, uint32_t stream) {
  const OpEvent& event = recording.ops[op];
  std::vector<std::string> all;
  for (size_t i = 0; i < event.arguments.size(); ++i) {
    const TensorOrigin origin = i < origins.size() ? origins[i] : TensorOrigin();
    all.push_back(tensor_words(recording, event.arguments[i], origin, stream));
  }
  for (ValueReader values(recording, event.values); !values.at_end();)
    all.push_back(values.words());
  std::string words = recording.text(event.name) + "(";
  for (size_t i = 0; i < all.size(); ++i) {
    if (words.size() > kLongText) return words + ", ...)";
    words += (i > 0 ? ", " : "") + all[i];
  }
  return words + ")";
}

}  // namespace remat::detail
