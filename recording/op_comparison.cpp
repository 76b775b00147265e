// SPDX-License-Identifier: BSD-3-Clause

#include "op_comparison.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <sstream>

#include "storage_origins.h"

namespace remat::detail {
namespace {

constexpr std::string_view kViews[] = {"_conj",
                                       "_neg_view",
                                       "_reshape_alias",
                                       "_unsafe_view",
                                       "adjoint",
                                       "alias",
                                       "as_strided",
                                       "chunk",
                                       "conj",
                                       "contiguous",
                                       "detach",
                                       "diagonal",
                                       "expand",
                                       "expand_as",
                                       "flatten",
                                       "imag",
                                       "lift_fresh",
                                       "mT",
                                       "movedim",
                                       "narrow",
                                       "numpy_T",
                                       "permute",
                                       "positive",
                                       "real",
                                       "reshape",
                                       "resolve_conj",
                                       "resolve_neg",
                                       "select",
                                       "slice",
                                       "split",
                                       "split_with_sizes",
                                       "squeeze",
                                       "swapaxes",
                                       "swapdims",
                                       "t",
                                       "tensor_split",
                                       "transpose",
                                       "unbind",
                                       "unflatten",
                                       "unfold",
                                       "unsafe_chunk",
                                       "unsqueeze",
                                       "view",
                                       "view_as",
                                       "view_as_complex",
                                       "view_as_real"};

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
/// A text such as "[1, -2], 'mean', 0.5, true, none".
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

using Cause = std::optional<DifferenceCause>;

const RecordedLayout& layout_of(const ComparedOp& side, const RecordedTensor& tensor) {
  return side.recording.layouts[tensor.layout];
}

/// The cause if two tensors differ, neither of which may be missing. Strides, offsets and
/// requires_grad are not compared if the tensors are results.
Cause cause_of_tensor(const ComparedOp& a, const RecordedTensor& in_a, const ComparedOp& b,
                      const RecordedTensor& in_b, bool is_result) {
  const RecordedLayout& before = layout_of(a, in_a);
  const RecordedLayout& now = layout_of(b, in_b);
  if (a.recording.text(before.dtype) != b.recording.text(now.dtype)) return DifferenceCause::kDtype;
  if (a.recording.text(before.device) != b.recording.text(now.device))
    return DifferenceCause::kDevice;
  if (before.sizes != now.sizes) return DifferenceCause::kShape;
  if (is_result) return std::nullopt;
  if (before.strides != now.strides || in_a.offset != in_b.offset) return DifferenceCause::kLayout;
  if (before.requires_grad != now.requires_grad) return DifferenceCause::kRequiresGrad;
  return std::nullopt;
}

Cause cause_of_origin(const TensorOrigin& a, const TensorOrigin& b, OutsidePairs& pairs,
                      bool strictly) {
  if (a.kind == OriginKind::kUnknown || b.kind == OriginKind::kUnknown) return std::nullopt;
  if (a.kind != b.kind) {
    if (a.is_replayed || b.is_replayed) return std::nullopt;
    return DifferenceCause::kOutsideTensor;
  }
  if (a.kind == OriginKind::kOutside)
    return pairs.match(a, b, strictly) ? Cause() : DifferenceCause::kOutsideTensor;
  return a.number == b.number && a.stream == b.stream ? Cause() : DifferenceCause::kInsideTensor;
}

Cause cause_of_tensors(const ComparedOp& a, const ComparedOp& b, OutsidePairs& pairs,
                       bool strictly) {
  const auto& before = a.event().arguments;
  const auto& now = b.event().arguments;
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if ((before[i].layout == 0) != (now[i].layout == 0)) return DifferenceCause::kOptional;
    if (before[i].layout == 0) continue;
    if (const Cause cause = cause_of_tensor(a, before[i], b, now[i], false)) return cause;
    if (i >= a.origins.size() || i >= b.origins.size()) continue;
    if (const Cause cause = cause_of_origin(a.origins[i], b.origins[i], pairs, strictly))
      return cause;
  }
  if (before.size() != now.size()) return DifferenceCause::kOptional;
  return std::nullopt;
}

/// The cause if two values of one kind differ. `in_list`: true if they are list elements.
DifferenceCause cause_of_kind(ValueKind kind, bool in_list, std::string_view op) {
  switch (kind) {
    case ValueKind::kBool:
      return DifferenceCause::kFlag;
    case ValueKind::kText:
      return DifferenceCause::kText;
    case ValueKind::kInt:
      if (is_cast(op)) return DifferenceCause::kCast;
      if (in_list) return DifferenceCause::kShape;
      return is_view(op) ? DifferenceCause::kLayout : DifferenceCause::kNumber;
    case ValueKind::kDouble:
      return DifferenceCause::kNumber;
    case ValueKind::kNone:
    case ValueKind::kList:
    case ValueKind::kOther:
      break;
  }
  return DifferenceCause::kOptional;
}

bool same_value(const Recording& recording_a, const RecordedValue& a, const Recording& recording_b,
                const RecordedValue& b) {
  if (a.kind != b.kind) return false;
  if (a.kind != ValueKind::kText) return a.bits == b.bits;
  return recording_a.text(static_cast<StringId>(a.bits)) ==
         recording_b.text(static_cast<StringId>(b.bits));
}

Cause cause_of_values(const ComparedOp& a, const ComparedOp& b) {
  const auto& before = a.event().values;
  const auto& now = b.event().values;
  uint64_t elements = 0;  // elements left in the list that contains the next value
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if (!same_value(a.recording, before[i], b.recording, now[i])) {
      const bool are_numbers = before[i].kind != ValueKind::kNone &&
                               now[i].kind != ValueKind::kNone && before[i].kind != now[i].kind;
      return are_numbers
                 ? DifferenceCause::kNumber
                 : cause_of_kind(before[i].kind == now[i].kind ? now[i].kind : ValueKind::kNone,
                                 elements > 0, a.name());
    }
    if (elements > 0) --elements;
    if (before[i].kind == ValueKind::kList) elements = before[i].bits;
  }
  if (before.size() != now.size()) return DifferenceCause::kOptional;
  return std::nullopt;
}

/// Compares results, which may differ although the arguments do not (autocast, sizes from data).
Cause cause_of_results(const ComparedOp& a, const ComparedOp& b) {
  const OpEvent& before = a.event();
  const OpEvent& now = b.event();
  if (before.threw || now.threw) return std::nullopt;
  for (size_t i = 0; i < std::min(before.results.size(), now.results.size()); ++i) {
    if (before.results[i].layout == 0 || now.results[i].layout == 0) continue;
    if (const Cause cause = cause_of_tensor(a, before.results[i], b, now.results[i], true))
      return cause;
  }
  return std::nullopt;
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

bool OutsidePairs::match(const TensorOrigin& a, const TensorOrigin& b, bool strictly) {
  if (is_same_run_) {
    if (a.storage == b.storage) return true;
    return !strictly && of_forward_.count(b.storage) == 0;
  }
  const auto second = seconds_.find(a.storage);
  const auto first = firsts_.find(b.storage);
  // If only one storage has a partner, pair both anew, because that storage may be mistaken for an
  // earlier one at its address: see Note [Storages by address].
  const bool both_known = second != seconds_.end() && first != firsts_.end();
  if (both_known && second->second != b.storage && first->second != a.storage) return false;
  seconds_[a.storage] = b.storage;
  firsts_[b.storage] = a.storage;
  return true;
}

std::optional<DifferenceCause> cause_of(const ComparedOp& a, const ComparedOp& b,
                                        OutsidePairs& pairs, bool strictly) {
  if (const Cause cause = cause_of_tensors(a, b, pairs, strictly)) return cause;
  if (const Cause cause = cause_of_values(a, b)) return cause;
  return cause_of_results(a, b);
}

bool is_number(const Recording& recording, const RecordedTensor& tensor) {
  const RecordedLayout& layout = recording.layouts[tensor.layout];
  return tensor.layout != 0 && layout.sizes.empty() && recording.text(layout.device) == "cpu";
}

bool is_view(std::string_view op) {
  return std::ranges::find(kViews, base_name(op)) != std::end(kViews);
}

bool is_cast(std::string_view op) {
  const std::string_view base = base_name(op);
  return base == "_to_copy" || base == "to" || base == "type_as";
}

bool depends_on_training(std::string_view op) {
  constexpr std::string_view kParts[] = {"dropout", "bernoulli", "norm", "empty_like"};
  return std::ranges::any_of(kParts, [&](auto part) { return op.find(part) != op.npos; });
}

}  // namespace remat::detail
