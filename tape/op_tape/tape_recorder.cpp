// SPDX-License-Identifier: BSD-3-Clause

// Turning ops into records.
#include "tape_recorder.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <remat/tape/host_copies.h>
#include <remat/tape/tensor_layout.h>
#include <remat/tape/torch_compat.h>

#include "hash_mix.h"
#include "storage_bytes.h"
#include "unseen.h"
#include "write_kind.h"

namespace remat {
namespace {

constexpr uint32_t kNone = TapeValue::kNone;
constexpr size_t kMaxArguments = 64;

/// The keys that a strided tensor may have, on any device.
const c10::DispatchKeySet kDense =
    c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask) |
    c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::AutogradFunctionality,
                         c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Conjugate,
                         c10::DispatchKey::Negative}) |
    c10::autocast_dispatch_keyset;

uint32_t narrow(size_t number) {
  return static_cast<uint32_t>(number);
}

/// True for ops that write an argument without reading it. Unknown for library ops, which count as
/// such.
bool overwrites(const OpInfo& op) {
  return op.is_of_library() || op.operator_name().overload_name.ends_with("out") ||
         op.facts().has(OpFact::kOverwrites) || op.facts().has(OpFact::kFills);
}

/// True if both are the same wrapped number, which is common.
bool is_same_number(const at::Tensor& a, const at::Tensor& b) {
  const auto is_readable = [](const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.device().is_cpu() &&
           tensor.storage().data() != nullptr;
  };
  return a.scalar_type() == b.scalar_type() && is_readable(a) && is_readable(b) &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace

const char* TapeRecorder::unsupported(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  if (kDense.has_all(keys) && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return nullptr;
  if (keys.has(c10::DispatchKey::Python)) return "a tensor of a Python class of its own";
  if (!has_layout(tensor)) return "a tensor that is not strided";
  if (has_dimension_names(keys)) return "a tensor with names for its dimensions";
  if (tensor.is_quantized() || tensor._is_zerotensor()) return "a quantized or a zero tensor";
  if (keys.has_any(c10::functorch_transforms_ks)) return "a tensor in a transform of torch.func";
  return nullptr;
}

void TapeRecorder::give_up(const std::string& what) {
  if (gave_up()) return;
  tape_.failure_ = what;
  tape_.clear();
  op_.runs = false;
  op_.pending.clear();
  held_slots_.clear();
  op_.written.clear();
  outside_tensors_.clear();
  refuse_if_strict();
}

void TapeRecorder::refuse_if_strict() const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      options_.strict_label.empty(), "[checkpoint] ", options_.strict_label,
      ": expected what a tape can replay, got ", tape_.failure_,
      cutter_ ? ". Leave the cuts out, or have them round the parts of the function beside that."
              : ". Use replay = kAuto (\"auto\"), which calls the function again then, or "
                "kFunction (\"function\").");
}

void TapeRecorder::give_up(const OpCall& call, const char* what) {
  give_up(c10::str("op ", call.info().name(), ": ", what));
}

uint32_t TapeRecorder::add_value(TapeValue::Source source, size_t number) {
  tape_.values_.push_back({.source = source, .number = narrow(number)});
  return narrow(tape_.values_.size() - 1);
}

void TapeRecorder::enter(const at::Tensor& tensor, uint32_t value) {
  storages_.set_value(memory_of(tensor), value);
}

void TapeRecorder::note_version(const at::Tensor& tensor, uint32_t value) {
  if (versions_.size() <= value) versions_.resize(value + 1);
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) versions_[value] = {counter, counter.current_version()};
}

/// See Note [Writes that no op shows]. A lower version means that it was put back
/// (_unsafe_preserve_version_counter).
bool TapeRecorder::is_written_unseen(uint32_t value) const {
  if (value >= versions_.size()) return false;
  const Version& version = versions_[value];
  return version.counter.enabled() && version.counter.current_version() > version.left;
}

uint32_t TapeRecorder::add_held(const at::Tensor& tensor) {
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

// Memory from inside without a value belonged to a SAVE call that has ended, and was freed.
bool TapeRecorder::is_new(const void* memory) const {
  const Origin origin = storages_.find(memory);
  return origin.is_unknown() || (origin.is_inside() && storages_.value(memory) == kNone);
}

/// The present value; kNone if the memory's origin is unknown.
uint32_t TapeRecorder::value_of(const at::Tensor& tensor) {
  const uint32_t value = last_value_of(tensor);
  if (C10_LIKELY(value == kNone || !is_written_unseen(value))) return value;
  return hold_written_unseen(tensor);
}

/// The value that its memory had when it was last seen.
uint32_t TapeRecorder::last_value_of(const at::Tensor& tensor) {
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

uint32_t TapeRecorder::layout_of(const at::Tensor& tensor, TapeValue& value) {
  for (const uint32_t known : {value.layout, last_layout_}) {
    if (known != kNone && tape_.has_layout(tensor, known)) return value.layout = known;
  }
  last_layout_ = value.layout = narrow(tape_.layouts_.size());
  tape_.layouts_.push_back({.offset = tensor.storage_offset(),
                            .first_dim = narrow(tape_.dims_.size()),
                            .dims = static_cast<uint16_t>(tensor.dim()),
                            .dtype = tensor.scalar_type(),
                            .device = tensor.device(),
                            .conjugated = tensor.is_conj(),
                            .negated = tensor.is_neg()});
  tape_.dims_.insert(tape_.dims_.end(), tensor.sizes().begin(), tensor.sizes().end());
  tape_.dims_.insert(tape_.dims_.end(), tensor.strides().begin(), tensor.strides().end());
  return value.layout;
}

TapeRef TapeRecorder::ref_of(const at::Tensor& tensor) {
  if (unsupported(tensor)) return {};
  const uint32_t value = value_of(tensor);
  if (value == kNone) return {};
  return {value, layout_of(tensor, tape_.values_[value])};
}

void TapeRecorder::note_mode() {
  if (gave_up() || tape_.is_under_mode_) return;
  tape_.is_under_mode_ = tape_.has_hashes_ = true;
}

void TapeRecorder::note_settings(const OpCall& call) {
  if (!gave_up())
    give_up(call, "a setting that the function changes (threads, precision, libraries)");
}

void TapeRecorder::note_streams(const OpCall& call) {
  if (!gave_up()) give_up(call, "another stream or current device than the region began with");
}

void TapeRecorder::before_op(const OpCall& call) {
  if (gave_up()) return;
  if (op_.runs) return give_up("an op that threw, after which the function went on");
  const OpInfo& info = call.info();
  if (info.is_communication()) return give_up(call, "a collective that replays call again");
  // A profile does not count views that a handler makes.
  if (cutter_ && !(handled_.runs && info.is_plain_view())) enter_segment();
  op_.runs = true;
  op_.has_run = false;
  op_.given.clear();
  op_.given_tensors.clear();
  op_.written.clear();
  op_.written_values.clear();
  op_.makes_views = (info.is_view() && !info.writes()) || info.changes_metadata();
  if (info.facts().has(OpFact::kChangesMemory))
    return give_up(call, "memory that changes its size");
  if (info.facts().has(OpFact::kMakesTangents)) return give_up(call, "a tensor with a tangent");
  if (op_.makes_views) return;
  if (info.argument_count() > kMaxArguments) return give_up(call, "more than 64 arguments");
  op_.record = {.op = &info,
                .argument = narrow(tape_.arguments_.size()),
                .ref = narrow(tape_.refs_.size()),
                .output = narrow(tape_.outputs_.size()),
                .write = narrow(tape_.writes_.size()),
                .grad_mode = c10::GradMode::is_enabled()};
  if (cutter_) cutter_->begin_op(info);
  for (size_t i = 0; i < info.argument_count() && !gave_up(); ++i) add_argument(call, i);
  op_.states.clear();
  if (options_.generators && (info.may_draw() || info.is_of_library()))
    op_.states = read_generators(*options_.generators);
}

void TapeRecorder::add_argument(const OpCall& call, size_t i) {
  const c10::IValue& value = call.argument(i);
  if (value.isTensor()) {
    op_.record.tensors |= uint64_t{1} << i;
    tape_.arguments_.emplace_back();
    return add_ref(call, i, value.toTensor());
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    const auto list = value.toListRef();
    op_.record.lists |= uint64_t{1} << i;
    if (value.isOptionalTensorList()) op_.record.tensors |= uint64_t{1} << i;
    tape_.arguments_.emplace_back(static_cast<int64_t>(list.size()));
    for (const c10::IValue& element : list)
      add_ref(call, i, element.isTensor() ? element.toTensor() : at::Tensor());
    return;
  }
  if (value.isStorage() || value.isObject() || value.isGenericDict() || value.isTuple())
    return give_up(call, "an argument that may have tensors inside");
  const bool waits_instead = value.isBool() && value.toBool() &&
                             call.info().op().schema().arguments()[i].name() == "non_blocking" &&
                             HostCopy(call, i).returns_early();
  tape_.arguments_.push_back(C10_UNLIKELY(waits_instead) ? c10::IValue(false) : value);
}

void TapeRecorder::add_ref(const OpCall& call, size_t i, const at::Tensor& tensor) {
  if (gave_up()) return;
  if (op_.record.ref_count == std::numeric_limits<uint16_t>::max())
    return give_up(call, "more than 65,534 tensors");
  ++op_.record.ref_count;
  if (!tensor.defined()) {
    tape_.refs_.emplace_back();
    return;
  }
  if (const char* const what = unsupported(tensor)) return give_up(call, what);
  TapeRef ref = ref_of(tensor);
  if (!ref.defined()) return give_up(call, "a tensor that no op of the function has made");
  const bool writes = call.writes_argument(i);
  const bool reads = call.info().reads_data();
  const bool is_unwritten = reads && tape_.values_[ref.value].is_uninitialised;
  if (is_unwritten && writes && overwrites(call.info())) {
    make_memory_here(tensor, ref);
  } else if (is_unwritten) {
    const bool writes_part = writes && write_kind(call, i) == WriteKind::kPart;
    if (!hold_unwritten(tensor, ref, writes_part ? kMostBytesOfPart : kMostBytes))
      return give_up(call, writes_part ? kUnwrittenPart : kUnwritten);
  }
  tape_.refs_.push_back(ref);
  op_.given.push_back(ref);
  op_.given_tensors.add(tensor.unsafeGetTensorImpl());
  if (cutter_ && reads) cutter_->read(ref, tensor, is_outside(tensor));
  if (writes) note_write(tensor, ref.value);
}

void TapeRecorder::after_op(const OpCall& call) {
  if (!op_.runs) return;
  op_.runs = false;
  op_.has_run = true;
  add_made(call);
  op_.has_run = false;
  op_.written.clear();  // A handler's memory dies with it.
}

/// Records what the op that has run has made, written and saved.
void TapeRecorder::add_made(const OpCall& call) {
  if (op_.makes_views) {
    for_each_result_tensor(call, [&](const at::Tensor& tensor) {
      const void* const memory = memory_of(tensor);
      if (!memory) return;
      if (storages_.find(memory).is_unknown())
        return give_up(call, "a copy where its schema says view");
      // t_() and the like count as writes.
      const uint32_t value = storages_.value(memory);
      if (!call.info().writes() || value == kNone) return;
      note_version(tensor, value);
      if (cutter_) cutter_->laid_out_anew(value, tensor);
    });
  } else {
    add_results(call);
    if (!gave_up()) add_writes(call);
    if (!gave_up()) end_record();
  }
  if (const auto policy = std::exchange(op_.save_next, std::nullopt))
    for_each_result_tensor(call, [&](const at::Tensor& result) { save_value(result, *policy); });
  resolve_pending();
}

void TapeRecorder::add_results(const OpCall& call) {
  for (const auto i : c10::irange(call.info().return_count())) {
    const c10::IValue& value = call.result(i);
    size_t element = 0;
    if (value.isTensor()) {
      add_output(call, value.toTensor(), i, 0);
    } else if (value.isTensorList()) {
      for (const c10::IValue& item : value.toListRef())
        add_output(call, item.toTensor(), i, element++);
    }
  }
}

void TapeRecorder::add_output(const OpCall& call, const at::Tensor& tensor, size_t result,
                              size_t element) {
  if (gave_up() || !tensor.defined()) return;
  if (C10_UNLIKELY(is_of_python_class(tensor))) return adopt_parts(tensor);
  if (const char* const what = unsupported(tensor)) return give_up(call, what);
  const void* const memory = memory_of(tensor);
  if (!memory || !is_new(memory)) return;
  const uint32_t value = add_value(TapeValue::Source::kRecord, tape_.records_.size());
  tape_.values_[value].is_uninitialised = call.info().is_uninitialised();
  enter(tensor, value);
  note_version(tensor, value);
  storages_.hold_address(tensor);
  tape_.outputs_.push_back({.result = static_cast<uint16_t>(result),
                            .element = static_cast<uint16_t>(element),
                            .ref = {value, layout_of(tensor, tape_.values_[value])}});
  if (cutter_ && has_own_memory(tensor.storage())) cutter_->allocated(value, tensor.storage());
  note_made(op_.record.output_count++, value, tensor);
}

/// The current record makes `value`, as result number `result`.
void TapeRecorder::note_made(size_t result, uint32_t value, const at::Tensor& tensor) {
  if (!cutter_) return;
  const TapeRef ref{value, layout_of(tensor, tape_.values_[value])};
  cutter_->made(tape_.records_.size(), result, ref, tensor, is_outside(tensor));
}

void TapeRecorder::end_record() {
  if (op_.record.output_count == 0 && op_.record.write_count == 0) return drop_record();
  drop_current(op_.states);
  op_.record.generator = narrow(tape_.generators_.size());
  op_.record.generator_count = static_cast<uint16_t>(op_.states.size());
  for (GeneratorState& state : op_.states) tape_.generators_.push_back(std::move(state));
  tape_.records_.push_back(op_.record);
  auto& hashes = tape_.op_hashes_;
  hashes.push_back(
      hash_mix(hashes.empty() ? 0 : hashes.back(), reinterpret_cast<uintptr_t>(op_.record.op)));
  if (!tape_.has_hashes_ && !options_.trusted.follow(hashes.size() - 1, hashes.back()))
    tape_.has_hashes_ = true;
  if (cutter_) cutter_->end_record();
}

void TapeRecorder::drop_record() {
  tape_.arguments_.resize(op_.record.argument);
  tape_.refs_.resize(op_.record.ref);
}

void TapeRecorder::adopt(const at::Tensor& tensor) {
  if (gave_up()) return;
  if (C10_UNLIKELY(is_of_python_class(tensor))) return;  // Known by its parts.
  const void* const memory = memory_of(tensor);
  if (!memory || !is_new(memory)) return;
  if (const char* const what = unsupported(tensor)) return give_up(what);
  storages_.hold_address(tensor);
  enter(tensor, add_held(tensor));
}

void TapeRecorder::set_outside(size_t number, size_t product) {
  if (gave_up()) return;
  if (outside_values_.size() <= number) outside_values_.resize(number + 1, kNone);
  outside_values_[number] = add_value(TapeValue::Source::kProduct, product);
}

void TapeRecorder::reset_outside(size_t number) {
  if (!gave_up()) outside_values_[number] = kNone;
}

}  // namespace remat
