// SPDX-License-Identifier: BSD-3-Clause

#include "op_comparison.h"

#include <algorithm>
#include <array>

#include "storage_origins.h"

namespace remat::detail {
namespace {

constexpr std::array<std::string_view, 46> kViews = {"_conj",
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

using Cause = std::optional<DifferenceCause>;

struct Sides {
  const ComparedOp& a;
  const ComparedOp& b;
};

const RecordedLayout& layout_of(const ComparedOp& side, const RecordedTensor& tensor) {
  return side.recording.layouts[tensor.layout];
}

/// The cause for two tensors that both exist.
Cause cause_of_type(const Sides& sides, const RecordedTensor& a, const RecordedTensor& b) {
  const RecordedLayout& before = layout_of(sides.a, a);
  const RecordedLayout& now = layout_of(sides.b, b);
  if (sides.a.recording.text(before.dtype) != sides.b.recording.text(now.dtype))
    return DifferenceCause::kDtype;
  if (sides.a.recording.text(before.device) != sides.b.recording.text(now.device))
    return DifferenceCause::kDevice;
  if (before.sizes != now.sizes) return DifferenceCause::kShape;
  return std::nullopt;
}

Cause cause_of_layout(const Sides& sides, const RecordedTensor& a, const RecordedTensor& b) {
  const RecordedLayout& before = layout_of(sides.a, a);
  const RecordedLayout& now = layout_of(sides.b, b);
  if (before.strides != now.strides || a.offset != b.offset) return DifferenceCause::kLayout;
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

Cause cause_of_tensors(const Sides& sides, OutsidePairs& pairs, bool strictly) {
  const auto& before = sides.a.event().arguments;
  const auto& now = sides.b.event().arguments;
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if ((before[i].layout == 0) != (now[i].layout == 0)) return DifferenceCause::kOptional;
    if (before[i].layout == 0) continue;
    if (const Cause cause = cause_of_type(sides, before[i], now[i])) return cause;
    if (const Cause cause = cause_of_layout(sides, before[i], now[i])) return cause;
    if (i >= sides.a.origins.size() || i >= sides.b.origins.size()) continue;
    if (const Cause cause =
            cause_of_origin(sides.a.origins[i], sides.b.origins[i], pairs, strictly))
      return cause;
  }
  if (before.size() != now.size()) return DifferenceCause::kOptional;
  return std::nullopt;
}

/// The cause for two values of one kind. `in_list` is true if they are list elements.
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

bool same_value(const Sides& sides, const RecordedValue& a, const RecordedValue& b) {
  if (a.kind != b.kind) return false;
  if (a.kind != ValueKind::kText) return a.bits == b.bits;
  return sides.a.recording.text(static_cast<StringId>(a.bits)) ==
         sides.b.recording.text(static_cast<StringId>(b.bits));
}

Cause cause_of_values(const Sides& sides) {
  const auto& before = sides.a.event().values;
  const auto& now = sides.b.event().values;
  uint64_t elements = 0;  // elements left in the list that contains the next value
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if (!same_value(sides, before[i], now[i])) {
      const bool are_numbers = before[i].kind != ValueKind::kNone &&
                               now[i].kind != ValueKind::kNone && before[i].kind != now[i].kind;
      return are_numbers
                 ? DifferenceCause::kNumber
                 : cause_of_kind(before[i].kind == now[i].kind ? now[i].kind : ValueKind::kNone,
                                 elements > 0, sides.a.name());
    }
    if (elements > 0) --elements;
    if (before[i].kind == ValueKind::kList) elements = before[i].bits;
  }
  if (before.size() != now.size()) return DifferenceCause::kOptional;
  return std::nullopt;
}

/// Compares results: an op inside may have done something else (autocast, sizes from data).
Cause cause_of_results(const Sides& sides) {
  const OpEvent& before = sides.a.event();
  const OpEvent& now = sides.b.event();
  if (before.threw || now.threw) return std::nullopt;
  for (size_t i = 0; i < std::min(before.results.size(), now.results.size()); ++i) {
    if (before.results[i].layout == 0 || now.results[i].layout == 0) continue;
    if (const Cause cause = cause_of_type(sides, before.results[i], now.results[i])) return cause;
  }
  return std::nullopt;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

bool OutsidePairs::match(const TensorOrigin& a, const TensorOrigin& b, bool strictly) {
  if (is_same_run_) {
    if (a.storage == b.storage) return true;
    return !strictly && of_forward_.count(b.storage) == 0;
  }
  const auto second = seconds_.find(a.storage);
  const auto first = firsts_.find(b.storage);
  // A new storage may have the address of an earlier one.
  const bool both_known = second != seconds_.end() && first != firsts_.end();
  if (both_known && second->second != b.storage && first->second != a.storage) return false;
  seconds_[a.storage] = b.storage;
  firsts_[b.storage] = a.storage;
  return true;
}

std::optional<DifferenceCause> cause_of(const ComparedOp& a, const ComparedOp& b,
                                        OutsidePairs& pairs, bool strictly) {
  const Sides sides{a, b};
  if (const Cause cause = cause_of_tensors(sides, pairs, strictly)) return cause;
  if (const Cause cause = cause_of_values(sides)) return cause;
  return cause_of_results(sides);
}

bool is_number(const Recording& recording, const RecordedTensor& tensor) {
  const RecordedLayout& layout = recording.layouts[tensor.layout];
  return tensor.layout != 0 && layout.sizes.empty() && recording.text(layout.device) == "cpu";
}

bool is_view(std::string_view op) {
  return std::find(kViews.begin(), kViews.end(), base_name(op)) != kViews.end();
}

bool is_cast(std::string_view op) {
  const std::string_view base = base_name(op);
  return base == "_to_copy" || base == "to" || base == "type_as";
}

bool depends_on_training(std::string_view op) {
  return contains(op, "dropout") || contains(op, "bernoulli") || contains(op, "norm") ||
         contains(op, "empty_like");
}

}  // namespace remat::detail
