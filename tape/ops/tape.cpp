// SPDX-License-Identifier: BSD-3-Clause

// Layouts, sizes and the text form of a tape.
#include <remat/tape/tape.h>

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <sstream>

#include <remat/engine/storage_bytes.h>
#include <remat/engine/tensor_layout.h>

namespace remat {

bool Tape::has_layout(const at::Tensor& tensor, uint32_t number) const {
  const auto& [layout, device] = layouts_[number];
  return tensor.storage_offset() == layout.offset && tensor.scalar_type() == layout.dtype &&
         tensor.device() == device && tensor.is_conj() == layout.conjugated &&
         tensor.is_neg() == layout.negated && tensor.sizes() == c10::IntArrayRef(layout.sizes) &&
         tensor.strides() == c10::IntArrayRef(layout.strides);
}

at::Tensor Tape::lay_out(const c10::Storage& storage, uint32_t number) const {
  return remat::lay_out(storage, layout(number));
}

at::Tensor Tape::without_data(uint32_t number) const {
  const auto& [layout, device] = layouts_[number];
  return remat::lay_out(shape_storage(layout.bytes_spanned(), device), layout);
}

at::Tensor Tape::unpack_outside(size_t number) const {
  if (number >= outside_.size()) return {};
  const Outside& outside = outside_[number];
  if (!outside.saved) return outside.leaf;
  const at::Tensor value = outside.saved->unpack();
  if (is_freed(value)) return value;  // An op that reads this value raises.
  return outside.whole ? on_whole_storage(value, *outside.whole, outside.size_bytes) : value;
}

std::vector<at::Generator> Tape::generators(size_t part) const {
  std::vector<at::Generator> distinct;
  if (generators_.empty()) return distinct;
  for (size_t i = parts_[part].begin; i < parts_[part].end && i < records_.size(); ++i) {
    for (const GeneratorState& state : generators(records_[i])) {
      const at::Generator& generator = state.generator();
      if (std::find(distinct.begin(), distinct.end(), generator) == distinct.end())
        distinct.push_back(generator);
    }
  }
  return distinct;
}

size_t Tape::size_bytes() const {
  const auto of = [](const auto& list) { return list.capacity() * sizeof(*list.data()); };
  size_t slots = 0;
  for (const TapePart& part : parts_) slots += of(part.slots);
  return slots + of(records_) + of(arguments_) + of(refs_) + of(outputs_) + of(writes_) +
         of(values_) + of(parts_) + of(layouts_) + of(generators_) + of(held_) + of(memories_) +
         of(outside_) + of(op_hashes_);
}

void Tape::visit_held(c10::function_ref<void(const KeptValue&)> visit) const {
  for (const KeptValue& value : held_slots_) visit(value);
  for (const auto i : c10::irange(held_.size())) {
    if (held_[i].defined() && !held_[i].unsafeGetTensorImpl()->is_wrapped_number())
      visit({c10::str("held by the tape ", i), TensorMeta(held_[i]), HeldStorage(held_[i])});
  }
  for (const auto i : c10::irange(outside_.size())) {
    // Leave out tensors that others hold (buffers, viewed weights), because they live without the
    // tape. Two references are `storage` itself and the tape's SavedVariable.
    const c10::Storage storage = outside_[i].storage.lock();
    const bool others_have_it = storage && storage.use_count() > 2;
    if (outside_[i].meta && !others_have_it)
      visit({c10::str("outside #", i), *outside_[i].meta, outside_[i].storage});
  }
}

std::string Tape::maker(uint32_t value) const {
  const TapeValue& of = values_[value];
  return of.source == TapeValue::Source::kRecord ? records_[of.number].op->name() : std::string();
}

std::string Tape::str() const {
  std::ostringstream text;
  const auto name = [&](const TapeRef& ref) {
    return ref.defined() ? c10::str("%", ref.value) : std::string("undefined");
  };
  size_t number = 0;
  for (const TapeRecord& record : records_) {
    std::string results;
    for (const TapeOutput& output : outputs(record))
      results += (results.empty() ? "" : ", ") + name(output.ref);
    for (const TapeWrite& write : writes(record))
      results += c10::str(results.empty() ? "" : ", ", "%", write.after);
    text << number++ << ": " << results << " = " << record.op->name() << '(';
    const TapeRef* ref = refs(record).begin();
    for (const auto i : c10::irange(record.op->argument_count())) {
      text << (i > 0 ? ", " : "");
      const bool is_list = (record.lists >> i & 1U) != 0;
      if (is_list) {
        text << '[';
        const int64_t count = arguments(record)[i].toInt();
        for (int64_t j = 0; j < count; ++j) text << (j > 0 ? ", " : "") << name(*ref++);
        text << ']';
      } else if ((record.tensors >> i & 1U) != 0) {
        text << name(*ref++);
      } else {
        text << arguments(record)[i];
      }
    }
    text << ")\n";
  }
  for (const auto i : c10::irange(parts_.size())) {
    if (parts_.size() > 1) text << "part " << i << ":\n";
    for (const auto j : c10::irange(parts_[i].slots.size())) {
      const TapeSlot& slot = parts_[i].slots[j];
      text << "slot " << j << " = ";
      if (slot.special && slot.special->unflatten) {
        text << "a wrapper of";
        for_each_ref(slot, [&](const TapeRef& one) { text << ' ' << name(one); });
      } else {
        text << (slot.special ? "held" : name(slot.ref));
      }
      text << '\n';
    }
  }
  return text.str();
}

void Tape::clear() {
  const std::string failure = failure_;
  *this = Tape();
  failure_ = failure;
}

}  // namespace remat
