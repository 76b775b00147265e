// SPDX-License-Identifier: BSD-3-Clause

// Writing ops as words, and comparing them.
#include <remat/engine/op_log.h>

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <c10/core/SymNodeImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/hash.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include <remat/engine/tensor_layout.h>

#include <remat/engine/hash_mix.h>
#include "op_word.h"

namespace remat {
namespace {

/// True for a tensor that LibTorch has made of a number, and whose bytes can be read.
bool wraps_readable_number(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.is_wrapped_number() && tensor.is_cpu() && has_layout(tensor) &&
         tensor.storage().data() != nullptr;
}

/// True if ops on this thread reach autograd. Otherwise requires_grad is not compared, because a
/// cast from autocast's cache may require grad where the replay's own cast does not. Inner tensors
/// of a tensor subclass, whose handler calls ops below autograd, may differ in the same way.
bool autograd_sees_ops() {
  return c10::GradMode::is_enabled() && !c10::impl::tls_local_dispatch_key_set().excluded_.has(
                                            c10::DispatchKey::AutogradFunctionality);
}

uint64_t device_word(c10::Device device) {
  return static_cast<uint64_t>(static_cast<uint8_t>(device.type())) |
         static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 8U;
}

/// The layout word of a tensor; 0 if it is contiguous from the beginning, or has no strides.
uint64_t layout_word(const at::Tensor& tensor, int64_t moved) {
  if (!has_layout(tensor) || tensor.numel() == 0) return 0;
  const int64_t offset = tensor.storage_offset() + moved / static_cast<int64_t>(tensor.itemsize());
  uint64_t flags = (tensor.is_conj() ? kConjugated : 0) | (tensor.is_neg() ? kNegated : 0);
  if (!tensor.is_contiguous()) {
    uint64_t hash = 0;
    for (const auto d : c10::irange(tensor.dim())) {
      if (tensor.size(d) > 1) hash = hash_mix(hash, tensor.stride(d));
    }
    flags |= kStrided | (hash >> kOffsetShift & kStridesMask);
  }
  return static_cast<uint64_t>(offset) << kOffsetShift | flags;
}

c10::SymNode node_of(const c10::IValue& value) {
  if (value.isSymInt()) return value.toSymInt().toSymNode();
  return value.isSymFloat() ? value.toSymFloat().toSymNodeImpl()
                            : value.toSymBool().toSymNodeImpl();
}

/// The expression of a symbol. "j" for the ragged dimension of a nested tensor, because its real
/// expression contains a number that is new each time that the tensor is made.
std::string symbol_of(const c10::SymNode& node) {
  if (!node) return "";
  try {
    if (const auto number = node->maybe_as_int()) return std::to_string(*number);
    return node->is_nested_int() ? "j" : node->str();
  } catch (...) {
    return "";  // A node of a Python class may throw anything.
  }
}

/// The C++ object that `value` holds if it is of a custom class; otherwise null.
c10::intrusive_ptr<torch::CustomClassHolder> custom_object(const c10::IValue& value) {
  if (!value.isCustomClass()) return nullptr;
  return value.toObjectRef().getSlot(0).toCapsule();
}

/// Note [Objects of ops]: an object is identified by its address, which is not reused while the log
/// lives. Another object in the replay is a difference, with two exceptions. Objects that an op of
/// the region has made (packed weights) may differ. Each call of c10d's ops gets a new object (a
/// ReduceOp), so another object is a difference only if the forward's object is still alive.
bool is_gone(uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const object = reinterpret_cast<c10::intrusive_ptr_target*>(address);
  return object && c10::raw::weak_intrusive_ptr::use_count(object) == 0;
}

}  // namespace

void OpWords::begin(const OpInfo& info) {
  start_ = words_.size();
  words_.push_back(reinterpret_cast<uintptr_t>(&info));
}

void OpWords::begin_call(uint64_t hash) {
  start_ = words_.size();
  words_.insert(words_.end(), {kNamedCall, header(OpWord::kHash), hash});
}

void OpWords::end() {
  uint64_t count = words_.size() - start_;
  if (count >= kManyWords) {
    words_.insert(words_.begin() + static_cast<std::ptrdiff_t>(start_) + 1, ++count);
  }
  words_[start_] |= std::min(count, kManyWords) << kAddressBits;
}

void OpWords::add_tensor(const at::Tensor& tensor, Origin origin, int64_t moved) {
  const bool wrapped = wraps_readable_number(tensor);
  const c10::Device device = tensor.device();
  const bool has_sizes =
      !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  const c10::IntArrayRef sizes = has_sizes ? tensor.sizes() : c10::IntArrayRef();
  // A tensor without elements cannot be confused with another one, so its origin is not logged.
  if (has_layout(tensor) && tensor.numel() == 0) origin = Origin::inside();
  uint64_t head = static_cast<uint64_t>(OpWord::kTensor);
  head |= static_cast<uint64_t>(tensor.scalar_type()) << kDtypeShift;
  head |= static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << kDeviceShift;
  head |= static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << kIndexShift;
  if (tensor.requires_grad() && autograd_sees_ops()) head |= kRequiresGrad;
  if (wrapped) head |= kHasValue;
  const uint64_t layout = layout_word(tensor, moved);
  if (layout != 0) head |= kLaidOut;
  head |= static_cast<uint64_t>(sizes.size()) << kDimShift;
  head |= std::min<uint64_t>(origin.value(), kOriginMax) << kOriginShift;
  words_.push_back(head);
  for (const int64_t size : sizes) words_.push_back(static_cast<uint64_t>(size));
  if (layout != 0) words_.push_back(layout);
  if (wrapped) add_bytes(tensor.const_data_ptr(), tensor.nbytes(), wrapped_words(head));
}

void OpWords::add_draw(uint64_t position) {
  words_.insert(words_.end(), {header(OpWord::kDraw), position});
}

void OpWords::add_settings(uint64_t changed) {
  if (C10_UNLIKELY(changed != 0)) words_.insert(words_.end(), {header(OpWord::kSettings), changed});
}

void OpWords::add_class(uint64_t tensor_class) {
  words_.insert(words_.end(), {header(OpWord::kClass), tensor_class});
}

/// Appends `count` words: the `size` bytes, then zeros.
void OpWords::add_bytes(const void* bytes, size_t size, size_t count) {
  const size_t begin = words_.size();
  words_.resize(begin + count);
  if (size > 0) std::memcpy(&words_[begin], bytes, std::min(size, count * kWordBytes));
}

void OpWords::add_text(std::string_view text) {
  words_.push_back(header(OpWord::kText, text.size()));
  add_bytes(text.data(), text.size(), payload_size(words_.back()));
}

void OpWords::add_value(const c10::IValue& value) {
  const auto add = [this](OpWord kind, uint64_t payload) {
    words_.push_back(header(kind));
    words_.push_back(payload);
  };
  if (value.isNone()) {
    words_.push_back(header(OpWord::kNone));
  } else if (value.isInt()) {
    add(OpWord::kInt, static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    add(OpWord::kBool, value.toBool() ? 1 : 0);
  } else if (value.isDouble()) {
    add(OpWord::kDouble, bits_of(value.toDouble()));
  } else if (value.isList()) {
    add_list(value);
  } else if (value.isDevice()) {
    add(OpWord::kDevice, device_word(value.toDevice()));
  } else {
    add_rare(value);
  }
}

void OpWords::add_list(const c10::IValue& value) {
  const c10::ArrayRef<c10::IValue> list = value.toListRef();
  const auto begin = [&](OpWord kind) { words_.push_back(header(kind, list.size())); };
  if (value.isIntList()) {
    begin(OpWord::kInts);
    for (const c10::IValue& element : list)
      words_.push_back(static_cast<uint64_t>(element.toInt()));
  } else if (value.isDoubleList()) {
    begin(OpWord::kDoubles);
    for (const c10::IValue& element : list) words_.push_back(bits_of(element.toDouble()));
  } else if (value.isBoolList()) {
    begin(OpWord::kBools);
    for (const c10::IValue& element : list) words_.push_back(element.toBool() ? 1 : 0);
  } else if (value.isComplexDoubleList()) {
    words_.push_back(header(OpWord::kDoubles, 2 * list.size()));
    for (const c10::IValue& element : list) add_parts(element.toComplexDouble());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    begin(OpWord::kTensors);
    const size_t mask = words_.size();
    words_.resize(mask + payload_size(words_.back()));
    for (const auto i : c10::irange(list.size())) {
      if (list[i].isTensor() && list[i].toTensor().defined())
        words_[mask + i / 64] |= uint64_t{1} << (i % 64);
    }
  } else {
    begin(OpWord::kList);
    for (const c10::IValue& element : list) add_value(element);
  }
}

void OpWords::add_parts(c10::complex<double> number) {
  words_.insert(words_.end(), {bits_of(number.real()), bits_of(number.imag())});
}

/// Adds values of types that few ops take.
void OpWords::add_rare(const c10::IValue& value) {
  if (value.isComplexDouble()) {
    words_.push_back(header(OpWord::kDoubles, 2));
    add_parts(value.toComplexDouble());
  } else if (value.isString()) {
    add_text(value.toStringRef());
  } else if (value.isTensor()) {  // In a list of lists, a dict or an object.
    value.toTensor().defined() ? add_tensor(value.toTensor(), Origin::inside())
                               : words_.push_back(header(OpWord::kNone));
  } else if (value.isSymInt() || value.isSymFloat() || value.isSymBool()) {
    add_text(symbol_of(node_of(value)));
  } else if (value.isGenerator()) {
    // add_draw() logs which generator it is, and its position.
    words_.push_back(header(OpWord::kGenerator));
    words_.push_back(value.toGenerator().defined() ? device_word(value.toGenerator().device()) : 0);
  } else if (value.isStream()) {
    add_value(static_cast<int64_t>(value.toStream().id()));
    add_value(value.toStream().device());
  } else if (value.isStorage()) {
    add_value(static_cast<int64_t>(value.toStorage().nbytes()));
  } else if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    words_.push_back(header(OpWord::kList, elements.size()));
    for (const c10::IValue& element : elements) add_value(element);
  } else if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    words_.push_back(header(OpWord::kList, 2 * dict.size()));
    for (const auto& entry : dict) {
      add_value(entry.key());
      add_value(entry.value());
    }
  } else if (value.isObject()) {
    add_object(value);
  } else {
    words_.push_back(header(OpWord::kOther));
  }
}

void OpWords::add_object(const c10::IValue& value) {
  constexpr std::string_view kMadeAnew = "__torch__.torch.classes.c10d.";
  const std::string name = value.toObjectRef().name();
  auto object = custom_object(value);
  const bool is_made = std::any_of(
      made_objects_.begin(), made_objects_.end(),
      [&](const WeakObject& made) { return made._unsafe_get_target() == object.get(); });
  const uint64_t kind =
      std::hash<std::string>()(name) << 1U | (name.starts_with(kMadeAnew) ? 1 : 0);
  const uint64_t address = is_made ? 0 : reinterpret_cast<uintptr_t>(object.get());
  words_.insert(words_.end(), {header(OpWord::kObject), kind, address});
  if (object) objects_.emplace_back(std::move(object));
}

namespace {

/// True if `call`, an op that views a tensor without strides, shows the whole tensor. If the op
/// takes sizes, these must be the tensor's.
bool shows_all(const OpCall& call, const at::Tensor& tensor) {
  if (call.info().facts().has(OpFact::kShowsAll)) return true;
  const bool has_sizes = !tensor.is_nested() &&
                         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
                         call.info().argument_count() > 1 && call.argument(1).isIntList();
  return call.info().facts().has(OpFact::kShowsAllWithSizes) && has_sizes &&
         tensor.sizes() == call.argument(1).toIntVector();
}

}  // namespace

uint16_t layout_hash(const at::Tensor& tensor, int64_t moved) {
  return static_cast<uint16_t>(hash_mix(0, layout_word(tensor, moved)) >> 48U);
}

bool is_written_down(const OpCall& call) {
  if (!call.info().is_plain_view() || !call.argument(0).isTensor()) return true;
  const at::Tensor& tensor = call.argument(0).toTensor();
  return tensor.defined() && !has_layout(tensor) && !shows_all(call, tensor);
}

void OpWords::note_made(const c10::IValue& object) {
  if (!object.isObject()) return;
  if (auto made = custom_object(object)) made_objects_.emplace_back(std::move(made));
}

bool OpWords::match_objects(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed) {
  return kind_of(logged[0]) == OpWord::kObject && logged.slice(0, 2) == replayed.slice(0, 2) &&
         (logged[1] & 1U) != 0 && is_gone(logged[2]);
}

bool OpWords::match(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed, bool draws,
                    c10::function_ref<bool(size_t number)> may_be_unknown) {
  if (logged == replayed) return true;
  if (logged.size() != replayed.size() || logged.empty() || logged[0] != replayed[0]) return false;
  for (size_t i = first_value(logged); i < logged.size(); i += 1 + payload_size(logged[i])) {
    const size_t size = 1 + payload_size(logged[i]);
    const auto now = replayed.slice(i, std::min(size, replayed.size() - i));
    if (logged.slice(i, size) == now) continue;
    if (kind_of(logged[i]) == OpWord::kDraw && kind_of(replayed[i]) == OpWord::kDraw && !draws)
      continue;
    if (now.size() == size && match_objects(logged.slice(i, size), now)) continue;
    const uint64_t below_origin = (uint64_t{1} << kOriginShift) - 1;
    const Origin origin = Origin::from_value(logged[i] >> kOriginShift);
    if (kind_of(logged[i]) != OpWord::kTensor || ((logged[i] ^ replayed[i]) & below_origin) != 0 ||
        logged.slice(i + 1, size - 1) != replayed.slice(i + 1, size - 1) ||
        !Origin::from_value(replayed[i] >> kOriginShift).is_unknown() || !origin.is_outside() ||
        !may_be_unknown(origin.number())) {
      return false;
    }
  }
  return true;
}

}  // namespace remat
