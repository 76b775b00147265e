// SPDX-License-Identifier: BSD-3-Clause

// Writing ops down as words, comparing them, and reading them back for messages.
#include <remat/tape/op_log.h>

#include <c10/core/GradMode.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include <remat/tape/tensor_meta.h>

namespace remat {
namespace {

enum class Kind : uint8_t {
  kTensor,
  kNone,
  kInt,
  kDouble,
  kBool,
  kInts,
  kDoubles,
  kBools,
  kHash,
  kDraw,
  kOther
};

constexpr uint64_t kAddressBits = 48;
constexpr size_t kLongText = 600;
constexpr uint64_t kManyWords = 0xFFFF;  // then word 1 is their number
constexpr uint64_t kCall = 1;            // in place of an OpInfo's address

// Of a tensor's header word.
constexpr unsigned kDtypeShift = 8;
constexpr unsigned kDeviceShift = 16;
constexpr unsigned kIndexShift = 24;
constexpr unsigned kFlagShift = 32;
constexpr unsigned kDimShift = 34;
constexpr unsigned kOriginShift = 42;
constexpr uint64_t kRequiresGrad = uint64_t{1} << kFlagShift;
constexpr uint64_t kHasValue = uint64_t{2} << kFlagShift;  // a number that torch wraps in a tensor
constexpr uint64_t kOriginMax = (uint64_t{1} << (64 - kOriginShift)) - 1;

uint64_t header(Kind kind, uint64_t rest = 0) {
  return static_cast<uint64_t>(kind) | rest << 8U;
}

uint64_t byte_at(uint64_t word, unsigned shift) {
  return word >> shift & 0xFFU;
}

Kind kind_of(uint64_t word) {
  return static_cast<Kind>(word & 0xFFU);
}

uint64_t bits_of(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

double double_of(uint64_t bits) {
  double value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint64_t wrapped_value(const at::Tensor& tensor) {
  uint64_t bits = 0;
  std::memcpy(&bits, tensor.const_data_ptr(), std::min(sizeof(bits), tensor.nbytes()));
  return bits;
}

/// A value of an op's words, and where the next one begins.
struct Value {
  Kind kind;
  uint64_t head;
  c10::ArrayRef<uint64_t> payload;
};

size_t payload_size(uint64_t head) {
  switch (kind_of(head)) {
    case Kind::kTensor:
      return byte_at(head, kDimShift) + ((head & kHasValue) ? 1 : 0);
    case Kind::kInt:
    case Kind::kDouble:
    case Kind::kBool:
    case Kind::kHash:
    case Kind::kDraw:
      return 1;
    case Kind::kInts:
    case Kind::kDoubles:
    case Kind::kBools:
      return head >> 8U;
    default:
      return 0;
  }
}

size_t first_value(c10::ArrayRef<uint64_t> op) {
  return op[0] >> kAddressBits == kManyWords ? 2 : 1;
}

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

std::string list_str(const Value& value) {
  std::string text = "[";
  for (const uint64_t word : value.payload) {
    if (text.size() > 1) text += ", ";
    text += value.kind == Kind::kDoubles ? c10::str(double_of(word))
                                         : c10::str(static_cast<int64_t>(word));
  }
  return text + "]";
}

Origin origin_of(const Value& value) {
  return Origin::from_value(value.head >> kOriginShift);
}

std::string tensor_str(const Value& value) {
  const auto dtype = static_cast<c10::ScalarType>(byte_at(value.head, kDtypeShift));
  const c10::Device device(static_cast<c10::DeviceType>(byte_at(value.head, kDeviceShift)),
                           static_cast<c10::DeviceIndex>(byte_at(value.head, kIndexShift)));
  const size_t dim = byte_at(value.head, kDimShift);
  std::string text = c10::str(dtype_name(dtype), " [");
  for (const auto i : c10::irange(dim)) {
    text += c10::str(i ? ", " : "", static_cast<int64_t>(value.payload[i]));
  }
  text += c10::str("] on ", device);
  if (value.head & kRequiresGrad) text += " requires grad";
  const Origin origin = origin_of(value);
  if (origin.is_unknown()) text += " from elsewhere";
  if (origin.is_outside()) text += c10::str(" from outside #", origin.number());
  if (origin.is_product()) text += " from a SAVE call";
  if (value.head & kHasValue) {
    const uint64_t bits = value.payload.back();
    text += " = " + (c10::isFloatingType(dtype) ? c10::str(double_of(bits))
                                                : c10::str(static_cast<int64_t>(bits)));
  }
  return text;
}

std::string value_str(const Value& value) {
  switch (value.kind) {
    case Kind::kTensor:
      return tensor_str(value);
    case Kind::kNone:
      return "None";
    case Kind::kInt:
      return c10::str(static_cast<int64_t>(value.payload[0]));
    case Kind::kDouble:
      return c10::str(double_of(value.payload[0]));
    case Kind::kBool:
      return value.payload[0] ? "true" : "false";
    case Kind::kInts:
    case Kind::kDoubles:
    case Kind::kBools:
      return list_str(value);
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

/// What a layer does in training only: dropout (its mask is an empty_like), statistics.
bool depends_on_training(const std::string& op) {
  return contains(op, "dropout") || contains(op, "bernoulli") || contains(op, "norm") ||
         contains(op, "empty_like");
}

const char* cause_of_tensor(const Value& logged, const Value& replayed) {
  if (byte_at(logged.head, kDtypeShift) != byte_at(replayed.head, kDtypeShift)) {
    return "A dtype differs: autocast, a cast or the default dtype has changed.";
  }
  if (byte_at(logged.head, kDeviceShift) != byte_at(replayed.head, kDeviceShift) ||
      byte_at(logged.head, kIndexShift) != byte_at(replayed.head, kIndexShift)) {
    return "A device differs: a tensor or module has been moved.";
  }
  if (byte_at(logged.head, kDimShift) != byte_at(replayed.head, kDimShift) ||
      logged.payload != replayed.payload) {
    return (logged.head & kHasValue)
               ? "A number differs: a counter, a schedule, or a random number not from a generator "
                 "of LibTorch."
               : "A shape differs: a cache that has grown, or a size taken from changed state.";
  }
  if ((logged.head ^ replayed.head) & kRequiresGrad) {
    return "requires_grad differs: a parameter has been frozen or unfrozen.";
  }
  if (origin_of(logged).value() != origin_of(replayed).value()) {
    return "It reads another tensor than the forward did: one that the function has assigned to a "
           "variable outside (as self.cache = cat(self.cache, x)), or a cache that was filled in "
           "the forward.";
  }
  return "";
}

}  // namespace

void OpWords::begin(const OpInfo& info) {
  start_ = words_.size();
  words_.push_back(reinterpret_cast<uintptr_t>(&info));
}

void OpWords::begin_call(uint64_t hash) {
  start_ = words_.size();
  words_.insert(words_.end(), {kCall, header(Kind::kHash), hash});
}

void OpWords::end() {
  uint64_t count = words_.size() - start_;
  if (count >= kManyWords) {
    words_.insert(words_.begin() + static_cast<std::ptrdiff_t>(start_) + 1, ++count);
  }
  words_[start_] |= std::min(count, kManyWords) << kAddressBits;
}

void OpWords::add_tensor(const at::Tensor& tensor, Origin origin) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool wrapped = impl.is_wrapped_number() && tensor.is_cpu();
  const c10::Device device = tensor.device();
  const bool has_sizes = !tensor.is_nested() && !impl.has_symbolic_sizes_strides();
  const c10::IntArrayRef sizes = has_sizes ? tensor.sizes() : c10::IntArrayRef();
  uint64_t head = static_cast<uint64_t>(Kind::kTensor);
  head |= static_cast<uint64_t>(tensor.scalar_type()) << kDtypeShift;
  head |= static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << kDeviceShift;
  head |= static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << kIndexShift;
  // Without grad mode it says nothing: a copy from autocast's cache may require grad where the
  // replay's own does not.
  if (tensor.requires_grad() && c10::GradMode::is_enabled()) head |= kRequiresGrad;
  if (wrapped) head |= kHasValue;
  head |= static_cast<uint64_t>(sizes.size()) << kDimShift;
  head |= std::min<uint64_t>(origin.value(), kOriginMax) << kOriginShift;
  words_.push_back(head);
  for (const int64_t size : sizes) words_.push_back(static_cast<uint64_t>(size));
  if (wrapped) words_.push_back(wrapped_value(tensor));
}

void OpWords::add_draw(uint64_t position) {
  words_.insert(words_.end(), {header(Kind::kDraw), position});
}

void OpWords::add_value(const c10::IValue& value) {
  const auto add = [this](Kind kind, uint64_t payload) {
    words_.push_back(header(kind));
    words_.push_back(payload);
  };
  if (value.isNone()) {
    words_.push_back(header(Kind::kNone));
  } else if (value.isInt()) {
    add(Kind::kInt, static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    add(Kind::kBool, value.toBool() ? 1 : 0);
  } else if (value.isDouble()) {
    add(Kind::kDouble, bits_of(value.toDouble()));
  } else if (value.isIntList() || value.isDoubleList() || value.isBoolList()) {
    const Kind kind = value.isIntList()      ? Kind::kInts
                      : value.isDoubleList() ? Kind::kDoubles
                                             : Kind::kBools;
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    words_.push_back(header(kind, list.size()));
    for (const c10::IValue& element : list) {
      words_.push_back(kind == Kind::kInts      ? static_cast<uint64_t>(element.toInt())
                       : kind == Kind::kDoubles ? bits_of(element.toDouble())
                                                : static_cast<uint64_t>(element.toBool()));
    }
  } else if (value.isString() || value.isComplexDouble() || value.isDevice()) {
    add(Kind::kHash, c10::IValue::hash(value));
  } else {
    words_.push_back(header(Kind::kOther));
  }
}

bool OpWords::match(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed, bool draws,
                    c10::function_ref<bool(size_t number)> may_be_unknown) {
  if (logged == replayed) return true;
  if (logged.size() != replayed.size() || logged.empty() || logged[0] != replayed[0]) return false;
  for (size_t i = first_value(logged); i < logged.size(); i += 1 + payload_size(logged[i])) {
    const size_t size = 1 + payload_size(logged[i]);
    if (logged.slice(i, size) == replayed.slice(i, std::min(size, replayed.size() - i))) continue;
    if (kind_of(logged[i]) == Kind::kDraw && kind_of(replayed[i]) == Kind::kDraw && !draws)
      continue;
    const uint64_t below_origin = (uint64_t{1} << kOriginShift) - 1;
    const Origin origin = Origin::from_value(logged[i] >> kOriginShift);
    if (kind_of(logged[i]) != Kind::kTensor || ((logged[i] ^ replayed[i]) & below_origin) != 0 ||
        logged.slice(i + 1, size - 1) != replayed.slice(i + 1, size - 1) ||
        !Origin::from_value(replayed[i] >> kOriginShift).is_unknown() || !origin.is_outside() ||
        !may_be_unknown(origin.number())) {
      return false;
    }
  }
  return true;
}

c10::ArrayRef<uint64_t> OpLog::at(size_t position) const {
  const c10::ArrayRef<uint64_t> words = words_.get();
  if (position >= words.size()) return {};
  const uint64_t count = words[position] >> kAddressBits;
  return words.slice(position, count == kManyWords ? words[position + 1] : count);
}

bool OpLog::is_call(c10::ArrayRef<uint64_t> op) {
  return !op.empty() && address_of(op) == kCall;
}

std::string OpLog::describe(c10::ArrayRef<uint64_t> op) {
  if (op.empty()) return "the end of the function";
  std::string text = (is_call(op) ? "" : info_of(op).name()) + "(";
  std::vector<Value> values = values_of(op);
  if (is_call(op)) values.erase(values.begin());
  bool first = true;
  for (const Value& value : values) {
    if (value.kind == Kind::kDraw) continue;
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
    const Value& a = before_values[i];
    const Value& b = now_values[i];
    if (same(a, b)) continue;
    if (a.kind == Kind::kTensor && b.kind == Kind::kTensor) return cause_of_tensor(a, b);
    if (a.kind == Kind::kDraw) {
      return "It draws other random numbers: the function seeds a generator otherwise, or draws "
             "from one that is not restored.";
    }
    if (a.kind == Kind::kBool && b.kind == Kind::kBool) {
      return "A flag differs, such as training.";
    }
    if (a.kind == Kind::kNone || b.kind == Kind::kNone) return "An optional argument differs.";
    if (a.kind == Kind::kInts || b.kind == Kind::kInts) {
      return "A size differs: a cache that has grown, or a size taken from changed state.";
    }
    return "A number differs: a counter, a schedule, or a random number not from a generator of "
           "LibTorch.";
  }
  return "The number of arguments differs.";
}

}  // namespace remat
