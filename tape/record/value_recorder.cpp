// SPDX-License-Identifier: BSD-3-Clause

// Finding and adding values, and holding what no record makes.
#include <remat/tape/value_recorder.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstring>

#include <remat/engine/held_storage.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/strided_keys.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/torch_compat.h>
#include <remat/engine/unseen.h>

namespace remat {
namespace {

constexpr uint32_t kNone = TapeValue::kNone;

/// True if both tensors are wrapped numbers of the same value.
bool is_same_number(const at::Tensor& a, const at::Tensor& b) {
  const auto is_readable = [](const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.device().is_cpu() &&
           tensor.storage().data() != nullptr;
  };
  return a.scalar_type() == b.scalar_type() && is_readable(a) && is_readable(b) &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace

const char* ValueRecorder::unsupported(const at::Tensor& tensor) {
  if (has_strided_keys(tensor)) return nullptr;
  const c10::DispatchKeySet keys = tensor.key_set();
  if (keys.has(c10::DispatchKey::Python)) return "a tensor of a Python class of its own";
  if (!has_layout(tensor)) return "a tensor that is not strided";
  if (has_dimension_names(keys)) return "a tensor with names for its dimensions";
  if (tensor.is_quantized() || tensor._is_zerotensor()) return "a quantized or a zero tensor";
  if (keys.has_any(c10::functorch_transforms_ks)) return "a tensor in a transform of torch.func";
  return nullptr;
}

void ValueRecorder::give_up(const std::string& what) {
  if (gave_up()) return;
  tape_.failure_ = what;
  tape_.clear();
  outside_tensors_.clear();
  refuse_if_strict();
}

void ValueRecorder::refuse_if_strict() const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      strict_label_.empty(), "[checkpoint] ", strict_label_,
      ": expected what a tape can replay, got ", tape_.failure_,
      is_cut_ ? ". Leave the cuts out, or have them round the parts of the function beside that."
              : ". Use replay = kAuto (\"auto\"), which calls the function again then, or "
                "kFunction (\"function\").");
}

void ValueRecorder::give_up(const OpCall& call, const char* what) {
  give_up(c10::str("op ", call.info().name(), ": ", what));
}

uint32_t ValueRecorder::add_value(TapeValue::Source source, size_t number) {
  tape_.values_.push_back({.source = source, .number = narrow(number)});
  return narrow(tape_.values_.size() - 1);
}

void ValueRecorder::enter(const at::Tensor& tensor, uint32_t value) {
  storages_.set_value(memory_of(tensor), value);
}

void ValueRecorder::note_version(const at::Tensor& tensor, uint32_t value) {
  if (versions_.size() <= value) versions_.resize(value + 1);
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) versions_[value] = {counter, counter.current_version()};
}

/// See Note [Writes that no op shows]. A version below the noted one is no write, because
/// _unsafe_preserve_version_counter has put the counter back.
bool ValueRecorder::is_written_unseen(uint32_t value) const {
  if (value >= versions_.size()) return false;
  const Version& version = versions_[value];
  return version.counter.enabled() && version.counter.current_version() > version.left;
}

uint32_t ValueRecorder::add_held(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    for (const auto i : c10::irange(tape_.values_.size() > 16 ? tape_.values_.size() - 16 : 0,
                                    tape_.values_.size())) {
      const TapeValue& value = tape_.values_[i];
      if (value.source == TapeValue::Source::kHeld &&
          is_same_number(tape_.held_[value.number], tensor))
        return narrow(i);
    }
    tape_.held_.push_back(tensor);
  } else {
    tape_.held_.push_back(tensor_data(tensor));
  }
  return add_value(TapeValue::Source::kHeld, tape_.held_.size() - 1);
}

// Memory that counts as made inside but has no value is new, because the SAVE call that made memory
// at this address has ended and freed it.
bool ValueRecorder::is_new(const void* memory) const {
  const Origin origin = storages_.find(memory);
  return origin.is_unknown() || (origin.is_inside() && storages_.value(memory) == kNone);
}

uint32_t ValueRecorder::value_of(const at::Tensor& tensor) {
  const uint32_t value = last_value_of(tensor);
  if (C10_LIKELY(value == kNone || !is_written_unseen(value))) return value;
  return hold_written_unseen(tensor);
}

/// The value that the tensor's memory had when the recorder last met it.
uint32_t ValueRecorder::last_value_of(const at::Tensor& tensor) {
  const void* const memory = memory_of(tensor);
  if (!memory) return add_held(tensor);
  if (const uint32_t known = storages_.value(memory); known != kNone) return known;
  const Origin origin = storages_.find(memory);
  const auto numbered = [&](std::vector<uint32_t>& values, TapeValue::Source source) {
    const size_t number = origin.number();
    if (values.size() <= number) values.resize(number + 1, kNone);
    if (values[number] == kNone) values[number] = add_value(source, number);
    return values[number];
  };
  if (origin.is_product()) return numbered(product_values_, TapeValue::Source::kProduct);
  if (!origin.is_outside()) return kNone;
  if (outside_tensors_.size() <= origin.number()) outside_tensors_.resize(origin.number() + 1);
  at::Tensor& outside = outside_tensors_[origin.number()];
  if (!outside.defined()) outside = tensor;
  return numbered(outside_values_, TapeValue::Source::kOutside);
}

uint32_t ValueRecorder::layout_of(const at::Tensor& tensor, TapeValue& value) {
  for (const uint32_t known : {value.layout, last_layout_}) {
    if (known != kNone && tape_.has_layout(tensor, known)) return value.layout = known;
  }
  last_layout_ = value.layout = narrow(tape_.layouts_.size());
  tape_.layouts_.emplace_back(TensorLayout(tensor), tensor.device());
  return value.layout;
}

TapeRef ValueRecorder::ref_of(const at::Tensor& tensor) {
  if (unsupported(tensor)) return {};
  const uint32_t value = value_of(tensor);
  return value == kNone ? TapeRef{} : ref_in(value, tensor);
}

TapeRef ValueRecorder::ref_in(uint32_t value, const at::Tensor& tensor) {
  return {value, layout_of(tensor, tape_.values_[value])};
}

uint32_t ValueRecorder::add_made(const at::Tensor& tensor, bool is_uninitialised) {
  const uint32_t value = add_written(tensor, Origin::inside());
  tape_.values_[value].is_uninitialised = is_uninitialised;
  storages_.hold_address(tensor);
  return value;
}

uint32_t ValueRecorder::add_written(const at::Tensor& tensor, Origin origin) {
  const uint32_t value = add_value(TapeValue::Source::kRecord, tape_.records_.size());
  if (origin.is_outside()) {
    outside_values_[origin.number()] = value;
  } else {
    enter(tensor, value);
  }
  note_version(tensor, value);
  return value;
}

bool ValueRecorder::is_outside(const at::Tensor& tensor) const {
  return storages_.find(memory_of(tensor)).is_outside();
}

void ValueRecorder::adopt(const at::Tensor& tensor) {
  if (gave_up()) return;
  if (C10_UNLIKELY(is_of_python_class(tensor))) return;  // The wrapper's inner tensors have values.
  const void* const memory = memory_of(tensor);
  if (!memory || !is_new(memory)) return;
  if (const char* const what = unsupported(tensor)) return give_up(what);
  storages_.hold_address(tensor);
  enter(tensor, add_held(tensor));
}

void ValueRecorder::set_outside(size_t number, size_t product) {
  if (gave_up()) return;
  if (outside_values_.size() <= number) outside_values_.resize(number + 1, kNone);
  outside_values_[number] = add_value(TapeValue::Source::kProduct, product);
}

void ValueRecorder::reset_outside(size_t number) {
  if (!gave_up()) outside_values_[number] = kNone;
}

void ValueRecorder::adopt_parts(const at::Tensor& wrapper) {
  for (const at::Tensor& part : inner_tensors(wrapper)) adopt(part);
}

uint32_t ValueRecorder::add_memory(const at::Tensor& tensor, uint32_t original) {
  tape_.memories_.push_back({tensor.storage().nbytes(), tensor.device(), original});
  const uint32_t value = add_value(TapeValue::Source::kMemory, tape_.memories_.size() - 1);
  tape_.values_[value].is_uninitialised = true;
  enter(tensor, value);
  return value;
}

void ValueRecorder::adopt_memory(const at::Tensor& tensor) {
  if (gave_up() || unsupported(tensor)) return;
  storages_.hold_address(tensor);
  add_memory(tensor);
}

bool ValueRecorder::hold_unwritten(const at::Tensor& tensor, TapeRef& ref, size_t max_bytes) {
  if (!tape_.values_[ref.value].is_uninitialised || tensor.numel() == 0) return true;
  if (tensor.storage().nbytes() > max_bytes) return false;
  enter(tensor, add_held(view_storage(clone_bytes(tensor.storage()).storage(), tensor)));
  ref = ref_of(tensor);
  return true;
}

/// Note [Writes that no op shows]: another thread of the function may write what a record has made,
/// or a custom function may report a write (mark_dirty). Version counters show both writes. Nobody
/// knows how to recompute the result, so the tape holds the bytes as they are at the next use.
uint32_t ValueRecorder::hold_written_unseen(const at::Tensor& tensor) {
  const uint32_t held = add_held(view_storage(clone_bytes(tensor.storage()).storage(), tensor));
  const Origin origin = storages_.find(memory_of(tensor));
  if (origin.is_outside()) {
    outside_values_[origin.number()] = held;
  } else {
    enter(tensor, held);
  }
  note_version(tensor, held);
  return held;
}

void ValueRecorder::before_write(const at::Tensor& tensor, uint32_t value) {
  const TapeValue& before = tape_.values_[value];
  if (before.source != TapeValue::Source::kHeld) return;
  at::Tensor& held = tape_.held_[before.number];
  if (held.storage().is_alias_of(tensor.storage()))
    held = view_storage(clone_bytes(held.storage()).storage(), held);
}

void ValueRecorder::finish(OutsideLog& outside, const std::vector<bool>& needed) {
  for (const auto i : c10::irange(needed.size())) {
    const TapeValue& value = tape_.values_[i];
    if (!needed[i] && value.source == TapeValue::Source::kHeld) tape_.held_[value.number].reset();
  }
  hold_outside(outside, needed);
  outside_tensors_.clear();
}

void ValueRecorder::hold_outside(OutsideLog& outside, const std::vector<bool>& needed) {
  tape_.outside_.resize(outside_tensors_.size());
  std::vector<bool> starts_from(outside.size());
  for (const auto i : c10::irange(needed.size())) {
    const TapeValue& value = tape_.values_[i];
    if (!needed[i] || value.source != TapeValue::Source::kOutside) continue;
    const size_t number = value.number;
    starts_from[number] = true;
    if (outside[number].is_written() || outside[number].whole_argument()) continue;
    const at::Tensor& tensor = outside_tensors_[number];
    // Hold weights, gathered weights (which nobody else keeps) and casts directly, not as slots of
    // an outer region. The outer replay does not find a cast that its forward took from autocast's
    // cache. Only leaves count as weights, since a view of a leaf may be no leaf in the replay.
    const bool is_weight =
        (tensor.is_leaf() && tensor.requires_grad()) || outside[number].is_gathered();
    if (is_weight || tensor.is_inference() || outside[number].is_cast()) {
      // Hold a view without its base. The base may later get a node that owns this region
      // (torch.jit gives detached weights such a node when its graph has run), and would then be in
      // a cycle.
      tape_.outside_[number].leaf = tensor.is_view() ? variable_data(tensor) : tensor;
    } else {
      hold_whole(tape_.outside_[number], tensor);
    }
  }
  for (const auto i : c10::irange(outside.size())) {
    if (!starts_from[i]) outside[i].drop_kept();
  }
}

/// Saves the whole storage, even if `tensor` is a part of it, because saved-tensor hooks may keep
/// only the tensor that they get.
void ValueRecorder::hold_whole(Tape::Outside& outside, const at::Tensor& tensor) {
  outside.meta.emplace(tensor);
  outside.storage = HeldStorage(tensor);
  if (!has_layout(tensor)) {
    outside.saved.emplace(variable_data(tensor), /*is_output=*/false);
    return;
  }
  outside.size_bytes = tensor.storage().nbytes();
  outside.whole = whole_layout(tensor);
  at::Tensor whole = tensor;
  if (*outside.whole != TensorLayout(tensor)) {
    whole = lay_out(tensor.storage(), *outside.whole);
    // An outer region notices later writes to `tensor` by the version of what it saves.
    whole.unsafeGetTensorImpl()->set_version_counter(
        tensor.unsafeGetTensorImpl()->version_counter());
  }
  const SavedOriginalGuard original(whole);
  outside.saved.emplace(variable_data(whole), /*is_output=*/false);
}

}  // namespace remat
