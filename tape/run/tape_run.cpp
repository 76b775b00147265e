// SPDX-License-Identifier: BSD-3-Clause

// One replay from a tape: calls the op of each needed record.
#include "tape_run.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <remat/engine/interception_bits.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/replay_mismatch.h>
#include <remat/engine/scope.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/tensor_hash.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/trace_sink.h>
#include <remat/engine/unseen.h>
#include <remat/placeholder/placeholder_impl.h>
#include <remat/tape/cut_value.h>

namespace remat {
namespace {

constexpr uint32_t kForSlot = std::numeric_limits<uint32_t>::max();

}  // namespace

TapeRun::TapeRun(const Tape& tape, const Region& root, const RegionEntry& entry,
                 const Region& region, size_t unit, Inputs inputs)
    : tape_(tape),
      part_(tape.parts()[unit]),
      root_(root),
      region_(region),
      entry_(entry),
      given_(inputs),
      last_use_(part_.first_value, std::min<size_t>(part_.end_value, tape.values().size())),
      live_(part_.first_value, std::min<size_t>(part_.end_value, tape.values().size())),
      slot_wanted_(part_.slots.size()) {
  for (const auto& input : given_) live_[input->value()].given = true;
  mark();
}

bool TapeRun::runs(const TapeRecord& record) const {
  return tape_.makes_any(
      record, [&](uint32_t value) { return last_use_[value] != 0 && !live_[value].given; });
}

// The step of a record is its index plus 1, because 0 stands for no step.
void TapeRun::mark() {
  for (const auto i : c10::irange(slot_wanted_.size())) {
    const TapeSlot& slot = part_.slots[i];
    slot_wanted_[i] = region_.slots()[i].live;
    if (!slot_wanted_[i]) continue;
    for_each_ref(slot, [&](const TapeRef& ref) { last_use_[ref.value] = kForSlot; });
  }
  for (size_t step = end(); step > part_.begin; --step) {
    const TapeRecord& record = tape_.records()[step - 1];
    if (!runs(record) || !record.op->reads_data()) continue;
    for (const TapeRef& ref : tape_.refs(record)) {
      if (ref.defined() && last_use_[ref.value] == 0)
        last_use_[ref.value] = static_cast<uint32_t>(step);
    }
  }
}

// First fetches values that groups make, those of outer groups first. In this order, when a group
// is replayed, only values of the groups around it have been fetched. The planner counts on that.
void TapeRun::fetch() {
  c10::SmallVector<const CutValue*, 8> wanted;
  for (const auto& input : given_) {
    if (last_use_[input->value()] != 0) wanted.push_back(input.get());
  }
  std::sort(wanted.begin(), wanted.end(), [](const CutValue* a, const CutValue* b) {
    return std::pair(a->groups_around(), a->value()) < std::pair(b->groups_around(), b->value());
  });
  for (const CutValue* const input : wanted)
    live_[input->value()].tensor = input->fetch(region_.label());
  last_use_.for_each([&](uint32_t number, uint32_t step) {
    Live& live = live_[number];
    if (step == 0 || live.given) return;
    const TapeValue& value = tape_.values()[number];
    live.tensor = fetch(value);
    live.owned = is_made_by_fetch(value, live.tensor);
  });
}

/// True if this run alone has the memory of `tensor`, which fetch() returned, so that it may write.
bool TapeRun::is_made_by_fetch(const TapeValue& value, const at::Tensor& tensor) const {
  if (value.source == TapeValue::Source::kMemory) return true;
  if (value.source != TapeValue::Source::kOutside || !tensor.has_storage()) return false;
  const OutsideStorage& outside = root_.outside()[value.number];
  return outside.is_written() && outside.unpacks_afresh() &&
         !PlaceholderStorage::is(tensor.storage());
}

at::Tensor TapeRun::fetch(const TapeValue& value) const {
  switch (value.source) {
    case TapeValue::Source::kOutside:
      return fetch_outside(value);
    case TapeValue::Source::kProduct:
      return fetch_product(value);
    case TapeValue::Source::kHeld:
      return tape_.held(value.number);
    case TapeValue::Source::kMemory:
      return make_memory(value);
    default:
      return {};
  }
}

// If a tensor was passed twice, only the first of the two arguments holds it. If hooks have brought
// it back, its strides may differ from the forward's, so it is laid out as in the forward.
at::Tensor TapeRun::fetch_argument(size_t outside) const {
  const std::optional<size_t> number = root_.outside()[outside].whole_argument();
  if (!number) return {};
  const RegionInput& input = entry_.inputs()[*number];
  if (!input.meta()) return {};
  const at::Tensor tensor = input.replayed(root_.label(), {});
  const std::optional<TensorLayout> layout = input.layout();
  if (!layout || is_freed(tensor) || TensorLayout(tensor) == *layout) return tensor;
  return lay_out(copy_into_storage(tensor, *layout, layout->bytes_spanned()), *layout);
}

at::Tensor TapeRun::fetch_outside(const TapeValue& value) const {
  const OutsideStorage& outside = root_.outside()[value.number];
  if (at::Tensor kept = outside.unpack_kept(); kept.defined()) return kept;
  at::Tensor tensor = fetch_argument(value.number);
  if (!tensor.defined()) tensor = tape_.unpack_outside(value.number);
  TORCH_CHECK(tensor.defined(), "[replay] ", region_.label(),
              ": expected to hold the outside tensor ", outside.meta().str(),
              ", got nothing. This is a defect of remat: please report it.");
  const auto where = [&] {
    return c10::str("[replay] ", region_.label(), ", ", outside.meta().str());
  };
  const bool has_its_memory = outside.address() == memory_of(tensor);
  // Hooks may bring back a copy after the memory was given up. The copy counts as unchanged.
  const at::Tensor now(outside.first_tensor().lock());
  const bool is_exchanged = has_its_memory || (now.defined() && now.numel() > 0)
                                ? outside.is_exchanged()
                                : tape_.holds_itself(value.number) && !is_freed(tensor);
  TORCH_CHECK(!is_exchanged, where(), ": ", kMemoryExchanged);
  TORCH_CHECK(outside.is_argument() || !is_grad_changed(now, outside.meta().requires_grad()),
              where(), ": ", kGradChanged);
  if (has_its_memory) outside.check_unchanged(tensor, where);
  return tensor;
}

at::Tensor TapeRun::fetch_product(const TapeValue& value) const {
  const CallProduct::Held held = root_.kept_product(value.number);
  const CallProduct& product = root_.calls().product(value.number);
  const auto where = [&] {
    return c10::str("[replay] ", region_.label(), ", ",
                    root_.calls().records()[product.call()].call.str());
  };
  TORCH_CHECK(held, where(),
              ": expected its result to be kept for the tape, "
              "got nothing. This is a defect of remat: please report it.");
  return product.unpack(held, where);
}

at::Tensor TapeRun::make_memory(const TapeValue& value) const {
  const TapeMemory& memory = tape_.memory(value.number);
  return lay_out(empty_storage(memory.size_bytes, memory.device),
                 TensorLayout::flat(memory.size_bytes, c10::kByte));
}

void TapeRun::run() {
  const InterceptionOff unseen;
  const c10::InferenceMode normal(false);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  TraceSink* const sink = trace_sink.load();
  for (const auto i : c10::irange(size_t{part_.begin}, end())) {
    const TapeRecord& record = tape_.records()[i];
    if (!runs(record)) continue;
    if (sink) sink->tape_record(tape_, i, /*begins=*/true);
    execute(record, static_cast<uint32_t>(i + 1));
    if (sink) sink->tape_record(tape_, i, /*begins=*/false);
  }
}

// Note [Results that are arguments]: an out= op returns its arguments. For ops with several
// results, LibTorch's boxing drops the arguments from the stack before it copies these results.
// Callers usually own the tensors. Here nobody else does, so written_arguments_ keeps them alive.
void TapeRun::execute(const TapeRecord& record, uint32_t step) {
  const bool of_library = record.op->is_of_library();
  prepare_writes(record, step);
  stack_.clear();
  push_arguments(record);
  if (record.writes.count > 0) written_arguments_ = stack_;
  {
    // Ops run like the leaf ops of a forward, but without a graph. Library ops keep their autograd
    // kernel, which may be their only kernel.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (!of_library) below.emplace();
    const c10::AutoGradMode grad_mode(record.grad_mode && !of_library);
    for (const GeneratorState& state : tape_.generators(record)) state.restore();
    record.op->op().callBoxed(stack_);
  }
  take_outputs(record);
  drop_used(record, step);
}

// The new value takes over the old value's memory if no later step needs the old value.
void TapeRun::prepare_writes(const TapeRecord& record, uint32_t step) {
  for (const TapeWrite& write : tape_.writes(record)) {
    Live& before = live_[write.before];
    Live& after = live_[write.after];
    if (after.given) given_and_written_.emplace_back(write.after, std::move(after));
    if (!before.owned || last_use_[write.before] != step) {
      const at::Tensor copy = clone_bytes(before.tensor.storage());
      after = {view_storage(copy.storage(), before.tensor), true};
    } else {
      after = before;
    }
    before.written = write.after;
  }
}

at::Tensor TapeRun::get(const TapeRef& ref) const {
  const at::Tensor& tensor = live_[ref.value].tensor;
  if (!tensor.defined()) return tape_.without_data(ref.layout);
  return tape_.has_layout(tensor, ref.layout) ? tensor
                                              : tape_.lay_out(tensor.storage(), ref.layout);
}

at::Tensor TapeRun::get_after_write(const TapeRef& ref) const {
  const uint32_t written = live_[ref.value].written;
  return get(written == TapeValue::kNone ? ref : TapeRef{written, ref.layout});
}

void TapeRun::push_arguments(const TapeRecord& record) {
  const TapeRef* ref = tape_.refs(record).begin();
  const auto next = [&] {
    const TapeRef& one = *ref++;
    at::Tensor tensor = one.defined() ? get_after_write(one) : at::Tensor();
    if (one.defined() && record.op->reads_data()) check_not_freed(record, tensor);
    return tensor;
  };
  for (const auto i : c10::irange(record.op->argument_count())) {
    const c10::IValue& argument = tape_.arguments(record)[i];
    const uint64_t bit = uint64_t{1} << static_cast<unsigned>(i);
    if ((record.lists & bit) == 0) {
      if ((record.tensors & bit) != 0) {
        stack_.emplace_back(next());
      } else {
        stack_.push_back(argument);
      }
      continue;
    }
    const int64_t count = argument.toInt();
    if ((record.tensors & bit) != 0) {
      c10::List<std::optional<at::Tensor>> list;
      for (int64_t j = 0; j < count; ++j) {
        at::Tensor tensor = next();
        list.push_back(tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
      }
      stack_.emplace_back(std::move(list));
    } else {
      c10::List<at::Tensor> list;
      for (int64_t j = 0; j < count; ++j) list.push_back(next());
      stack_.emplace_back(std::move(list));
    }
  }
}

void TapeRun::check_not_freed(const TapeRecord& record, const at::Tensor& tensor) const {
  TORCH_CHECK(!is_freed(tensor), "[replay] ", region_.label(), ", op ", record.op->name(), " (",
              TensorMeta(tensor).str(), "): ", kMemoryFreed, kGiveMemoryBack);
}

void TapeRun::take_outputs(const TapeRecord& record) {
  const size_t first = stack_.size() - record.op->return_count();
  for (const TapeOutput& output : tape_.outputs(record)) {
    const c10::IValue& result = stack_[first + output.result];
    at::Tensor tensor;
    if (result.isTensor()) {
      tensor = result.toTensor();
    } else if (result.isTensorList() && output.element < result.toListRef().size()) {
      tensor = result.toListRef()[output.element].toTensor();
    }
    if (!tensor.defined() || !tape_.has_layout(tensor, output.ref.layout))
      fail(record, "a result of another shape");
    Live& live = live_[output.ref.value];
    if (last_use_[output.ref.value] != 0 && !live.given) live = {std::move(tensor), true};
  }
}

void TapeRun::drop_used(const TapeRecord& record, uint32_t step) {
  for (const TapeRef& ref : tape_.refs(record)) {
    if (ref.defined() && last_use_[ref.value] == step) live_[ref.value] = {};
  }
  for (const TapeWrite& write : tape_.writes(record)) {
    live_[write.before].written = TapeValue::kNone;
    if (last_use_[write.after] == 0) live_[write.after] = {};
  }
  for (auto& [value, given] : given_and_written_) live_[value] = std::move(given);
  given_and_written_.clear();
  stack_.clear();
  written_arguments_.clear();
}

/// True if this run has made the memory of value `number`. False if the memory existed before, in a
/// tensor from outside or in a kept tensor.
bool TapeRun::is_new(uint32_t number) const {
  const TapeValue& value = tape_.values()[number];
  const void* const memory = memory_of(live_[number].tensor);
  if (value.source == TapeValue::Source::kProduct)
    return root_.calls().product(value.number).storage().address() != memory;
  if (value.source != TapeValue::Source::kOutside) return live_[number].owned;
  const OutsideStorage& outside = root_.outside()[value.number];
  return outside.address() != memory &&
         !(outside.is_written() && outside.is_kept_copy(live_[number].tensor));
}

void TapeRun::fill(ReplayedSlots& slots) {
  for (const auto i : c10::irange(slot_wanted_.size())) {
    if (slot_wanted_[i]) slots[i] = value_of(part_.slots[i], i);
  }
}

/// The tensor for slot `number`; `slot` may be a part of the tensor subclass in that slot.
at::Tensor TapeRun::value_of(const TapeSlot& slot, size_t number) const {
  if (C10_UNLIKELY(slot.special && slot.special->unflatten))
    return make_wrapper(*slot.special, number);
  at::Tensor value = slot.special ? slot.special->held->unpack() : get(slot.ref);
  const Live* const live = slot.special ? nullptr : &live_[slot.ref.value];
  if (!live || !live->owned) {
    value = tensor_data(value);  // Without its graph.
  } else if (C10_UNLIKELY(!value.is_same(live->tensor) && live->tensor.defined())) {
    // A write in backward to one of two views must change the version of both.
    value.unsafeGetTensorImpl()->set_version_counter(
        live->tensor.unsafeGetTensorImpl()->version_counter());
  }
  if (tape_.has_hashes() && slot.hash != 0 && region_.is_exact()) check_hash(slot, number, value);
  if (!slot.special && is_new(slot.ref.value)) OpObserver::all_adopt(value);
  return value;
}

at::Tensor TapeRun::make_wrapper(const TapeSlot::Special& wrapper, size_t number) const {
  std::vector<at::Tensor> parts;
  for (const TapeSlot& part : wrapper.parts) parts.push_back(value_of(part, number));
  const Unseen unseen;
  return wrapper.unflatten(parts).tensor_data();
}

// In an outer region's replay, `value` may be a placeholder, which has no bytes to compare.
void TapeRun::check_hash(const TapeSlot& slot, size_t number, const at::Tensor& value) const {
  const uint64_t hash = hash_of(value);
  if (hash == 0 || hash == slot.hash) return;
  const Slot& saved = region_.slots()[number];
  TORCH_CHECK(!saved.version.changed(), modified_in_place(saved.meta, saved.version), "[replay] ",
              region_.label(), ", slot ", number,
              ": expected the tensor as the forward saved it. Do not write it between forward "
              "and backward, or save a clone.");
  throw ReplayMismatch(
      c10::str("[replay] ", region_.label(), ", slot ", number,
               ": expected the values that the forward saved (", saved.meta.str(),
               "), got others from its tape. Something wrote memory in a way that the dispatcher "
               "does not see (.numpy(), a raw pointer), or a kept result after its region, or "
               "computes other values each time: it draws from a generator that the function "
               "makes, or a mode that the function opens changes it. Pass a clone of what is "
               "written, and put an op that computes other values each time into a SAVE call, or "
               "use replay = kFunction."));
}

void TapeRun::fail(const TapeRecord& record, const char* what) const {
  throw ReplayMismatch(c10::str("[replay] ", region_.label(), ", op ", record.op->name(),
                                ": expected from the tape what the forward got, got ", what,
                                ". Use replay = kFunction."));
}

}  // namespace remat
