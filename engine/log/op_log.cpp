// SPDX-License-Identifier: BSD-3-Clause

// Reading logged ops back, for messages.
#include <remat/engine/op_log.h>

#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include <remat/engine/tensor_meta.h>

#include "op_word.h"

namespace remat {
namespace {

constexpr size_t kLongText = 600;

/// One value in an op's words.
struct Value {
  OpWord kind;
  uint64_t head;
  c10::ArrayRef<uint64_t> payload;
};

std::vector<Value> values_of(c10::ArrayRef<uint64_t> op) {
  std::vector<Value> values;
  for (size_t i = first_value(op); i < op.size();) {
    const size_t size = payload_size(op[i]);
    values.push_back({kind_of(op[i]), op[i], op.slice(i + 1, size)});
    i += 1 + size;
  }
  return values;
}

uint64_t address_of(c10::ArrayRef<uint64_t> op) {
  return op[0] & ((uint64_t{1} << kAddressBits) - 1);
}

const OpInfo& info_of(c10::ArrayRef<uint64_t> op) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): see Note [Words of an op].
  return *reinterpret_cast<const OpInfo*>(address_of(op));
}

std::string complex_str(uint64_t real, uint64_t imaginary) {
  return c10::str("(", double_of(real), ", ", double_of(imaginary), ")");
}

std::string list_str(const Value& value) {
  std::string text = "[";
  for (const uint64_t word : value.payload) {
    if (text.size() > 1) text += ", ";
    text += value.kind == OpWord::kDoubles ? c10::str(double_of(word))
                                           : c10::str(static_cast<int64_t>(word));
  }
  return text + "]";
}

std::string quoted(const Value& value) {
  const auto* const bytes = reinterpret_cast<const char*>(value.payload.data());
  return c10::str("'", std::string_view(bytes, std::min<size_t>(value.head >> 8U, kLongText)), "'");
}

c10::Device device_of(uint64_t word) {
  return {static_cast<c10::DeviceType>(byte_at(word, 0)),
          static_cast<c10::DeviceIndex>(byte_at(word, 8))};
}

std::string wrapped_str(const Value& value) {
  const uint64_t first = value.payload[value.payload.size() - wrapped_words(value.head)];
  const c10::ScalarType dtype = dtype_of(value.head);
  if (c10::isComplexType(dtype)) return complex_str(first, value.payload.back());
  return c10::isFloatingType(dtype) ? c10::str(double_of(first))
                                    : c10::str(static_cast<int64_t>(first));
}

Origin origin_of(const Value& value) {
  return Origin::from_value(value.head >> kOriginShift);
}

std::string layout_str(uint64_t layout) {
  std::string text;
  if (layout & kStrided) text += " strided";
  if (layout & kConjugated) text += " conjugated";
  if (layout & kNegated) text += " negated";
  const uint64_t offset = layout >> kOffsetShift;
  return offset == 0 ? text : c10::str(text, " at element ", offset);
}

std::string tensor_str(const Value& value) {
  const c10::Device device = device_of(value.head >> kDeviceShift);
  const size_t dim = dim_of(value.head);
  std::string text = c10::str(dtype_name(dtype_of(value.head)), " [");
  for (const auto i : c10::irange(dim)) {
    text += c10::str(i ? ", " : "", static_cast<int64_t>(value.payload[i]));
  }
  text += "]";
  if (layout_words(value.head) != 0) text += layout_str(value.payload[dim]);
  text += c10::str(" on ", device);
  if (value.head & kRequiresGrad) text += " requires grad";
  const Origin origin = origin_of(value);
  if (origin.is_unknown()) text += " from elsewhere";
  if (origin.is_cast()) text += " cast from a leaf";
  if (origin.is_made()) text += c10::str(" of op ", origin.maker());
  if (origin.is_outside()) text += c10::str(" from outside #", origin.number());
  if (origin.is_product()) text += " from a SAVE call";
  if (value.head & kHasValue) text += " = " + wrapped_str(value);
  return text;
}

std::string value_str(const Value& value) {
  switch (value.kind) {
    case OpWord::kTensor:
      return tensor_str(value);
    case OpWord::kNone:
      return "None";
    case OpWord::kInt:
      return c10::str(static_cast<int64_t>(value.payload[0]));
    case OpWord::kDouble:
      return c10::str(double_of(value.payload[0]));
    case OpWord::kBool:
      return value.payload[0] ? "true" : "false";
    case OpWord::kInts:
    case OpWord::kDoubles:
    case OpWord::kBools:
      return list_str(value);
    case OpWord::kText:
      return quoted(value);
    case OpWord::kDevice:
      return device_of(value.payload[0]).str();
    case OpWord::kSettings:
      return "under a setting that the function has changed";
    default:
      return "...";
  }
}

bool same(const Value& a, const Value& b) {
  return a.head == b.head && a.payload == b.payload;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// True for ops that depend on a training flag: those of normalisations, and of dropout, whose mask
/// empty_like makes.
bool depends_on_training(const std::string& op) {
  return contains(op, "dropout") || contains(op, "bernoulli") || contains(op, "norm") ||
         contains(op, "empty_like");
}

/// The cause if `op` comes from torch.compile; null for other ops.
const char* cause_of_compiled(const std::string& op) {
  if (!op.starts_with("remat::compiled_graph")) return nullptr;
  return "A compiled function runs other code than in the forward: it has been compiled again "
         "since, as a size or a number in it varies. Use replay = kAuto (\"auto\"), or compile it "
         "with dynamic=True.";
}

uint64_t layout_of(const Value& tensor) {
  return layout_words(tensor.head) != 0 ? tensor.payload[dim_of(tensor.head)] : 0;
}

/// The cause if the tensors differ in anything but their origin; else null.
const char* cause_of_meta(const Value& logged, const Value& replayed) {
  if (byte_at(logged.head, kDtypeShift) != byte_at(replayed.head, kDtypeShift)) {
    return "A dtype differs: autocast, a cast or the default dtype has changed.";
  }
  if (byte_at(logged.head, kDeviceShift) != byte_at(replayed.head, kDeviceShift) ||
      byte_at(logged.head, kIndexShift) != byte_at(replayed.head, kIndexShift)) {
    return "A device differs: a tensor or module has been moved.";
  }
  const size_t dim = dim_of(logged.head);
  const bool same_sizes = dim == dim_of(replayed.head) &&
                          logged.payload.slice(0, dim) == replayed.payload.slice(0, dim);
  if (same_sizes && layout_of(logged) != layout_of(replayed)) {
    return "It reads another part of a tensor, or in another order: an index or a layout depends "
           "on "
           "state that has changed.";
  }
  if (!same_sizes || logged.payload != replayed.payload) {
    return (logged.head & kHasValue)
               ? "A number differs: a counter, a schedule, or a random number not from a generator "
                 "of LibTorch."
               : "A shape differs: a cache that has grown, or a size taken from changed state.";
  }
  if ((logged.head ^ replayed.head) & kRequiresGrad) {
    return "requires_grad differs: a parameter has been frozen or unfrozen, or the region writes a "
           "value with a gradient into memory that another of its arguments shares.";
  }
  return nullptr;
}

const char* cause_of_tensor(const Value& logged, const Value& replayed) {
  if (const char* const cause = cause_of_meta(logged, replayed)) return cause;
  if (origin_of(logged).is_cast() || origin_of(replayed).is_cast()) {
    return "It reads a cast of another parameter than the forward did: which module or weight is "
           "used depends on state that has changed, or it has been replaced.";
  }
  if (origin_of(logged).is_inside() && origin_of(replayed).is_inside()) {
    return "It reads another tensor that the function makes: which one depends on state that has "
           "changed, or on an order that is not fixed (a set, a random choice).";
  }
  if (origin_of(logged).value() != origin_of(replayed).value()) {
    return "It reads another tensor than the forward did: one that the function has assigned to a "
           "variable outside (as self.cache = cat(self.cache, x)), a captured variable that has "
           "been bound to another tensor since (pass it as an argument), a cache that was filled "
           "in the forward, or a tensor of a Python class that the function makes by its "
           "constructor (DTensor.from_local), which is no op.";
  }
  return "";
}

/// The likely cause if `logged` and `replayed` are the first values in which the ops differ.
const char* cause_of_value(const Value& logged, const Value& replayed) {
  if (logged.kind == OpWord::kSettings || replayed.kind == OpWord::kSettings) {
    return "It computes under another setting (threads, precision, libraries, denormal numbers) "
           "that the function itself sets.";
  }
  if (logged.kind == OpWord::kClass || replayed.kind == OpWord::kClass) {
    return "A tensor is of another Python class, or its class says something else of it (the "
           "placements of a DTensor).";
  }
  if (logged.kind == OpWord::kTensor && replayed.kind == OpWord::kTensor)
    return cause_of_tensor(logged, replayed);
  if (logged.kind == OpWord::kDraw) {
    return "It draws other random numbers: the function seeds a generator otherwise, or draws "
           "from one that is not restored.";
  }
  if (logged.kind == OpWord::kBool && replayed.kind == OpWord::kBool) {
    return "A flag differs, such as training.";
  }
  if (logged.kind == OpWord::kNone || replayed.kind == OpWord::kNone ||
      logged.kind == OpWord::kTensors)
    return "An optional argument differs, or the length of a list.";
  if (logged.kind == OpWord::kText) return "A text differs: a mode or a setting has changed.";
  if (logged.kind == OpWord::kDevice) return "A device differs: a tensor or module has been moved.";
  if (logged.kind == OpWord::kObject) return "Another object is passed.";
  if (logged.kind == OpWord::kInts || replayed.kind == OpWord::kInts) {
    return "A size differs: a cache that has grown, or a size taken from changed state.";
  }
  return "A number differs: a counter, a schedule, or a random number not from a generator of "
         "LibTorch.";
}

}  // namespace

c10::ArrayRef<uint64_t> OpLog::at(size_t position) const {
  const c10::ArrayRef<uint64_t> words = words_.get();
  if (position >= words.size()) return {};
  const uint64_t count = words[position] >> kAddressBits;
  return words.slice(position, count == kManyWords ? words[position + 1] : count);
}

bool OpLog::is_call(c10::ArrayRef<uint64_t> op) {
  return !op.empty() && address_of(op) == kNamedCall;
}

std::string OpLog::describe(c10::ArrayRef<uint64_t> op) {
  if (op.empty()) return "the end of the function";
  std::string text = (is_call(op) ? "" : info_of(op).name()) + "(";
  std::vector<Value> values = values_of(op);
  if (is_call(op)) values.erase(values.begin());
  bool first = true;
  for (const Value& value : values) {
    const bool says_nothing = value.kind == OpWord::kDraw || value.kind == OpWord::kClass ||
                              value.kind == OpWord::kTensors || value.kind == OpWord::kList;
    if (says_nothing) continue;
    if (!first) text += ", ";
    if (text.size() > kLongText) return text + "...)";
    text += value_str(value);
    first = false;
  }
  return text + ")";
}

std::string OpLog::likely_cause(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed) {
  if (logged.empty()) return "The replay calls an op more than the forward did.";
  if (replayed.empty()) return "The replay calls fewer ops than the forward did.";
  if (!is_call(logged) && address_of(logged) != address_of(replayed)) {
    const OpInfo& before = info_of(logged);
    const OpInfo& now = info_of(replayed);
    for (const OpInfo* op : {&before, &now}) {
      if (const char* const cause = cause_of_compiled(op->name())) return cause;
    }
    if (before.is_cast() || now.is_cast()) return "Autocast or a cast differs.";
    if (depends_on_training(before.name()) || depends_on_training(now.name())) {
      return "A training flag or a probability differs, or the function branches on state or on "
             "data that has changed.";
    }
    return "The function branches on state or on data that has changed.";
  }
  const std::vector<Value> before_values = values_of(logged);
  const std::vector<Value> now_values = values_of(replayed);
  for (const auto i : c10::irange(std::min(before_values.size(), now_values.size()))) {
    if (same(before_values[i], now_values[i])) continue;
    const bool is_text = !is_call(logged) && before_values[i].kind == OpWord::kText;
    const char* const cause = is_text ? cause_of_compiled(info_of(logged).name()) : nullptr;
    return cause ? cause : cause_of_value(before_values[i], now_values[i]);
  }
  return "The number of arguments differs.";
}

}  // namespace remat
