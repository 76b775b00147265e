// SPDX-License-Identifier: BSD-3-Clause

// The values of a forward's tape, matched with the memory blocks of its StepLog.
#include <remat/budget/step_structure.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

#include <remat/engine/tensor_layout.h>

namespace remat {

namespace {

class StructureBuilder {
 public:
  StructureBuilder(const StepLog& log, const Region& region, const Tape& tape, std::string name,
                   c10::Device device)
      : log_(log), region_(region), tape_(tape), device_(device) {
    profile_.name = std::move(name);
    if (device.is_cpu()) return;
    profile_.device = device.str();
    profile_.other_devices = log.other_accelerators(device);
  }

  StepStructure run() {
    number_values();
    match_ops();
    match_results();
    add_values();
    for (const auto i : c10::irange(tape_.records().size())) add_record(i);
    add_bytes();
    add_outside();
    add_slots();
    return std::move(made_);
  }

 private:
  size_t size() const { return tape_.records().size(); }
  const StepLog::Op& op_of(size_t record) const { return log_.ops[made_.op_of[record]]; }

  /// A tape value that exists only because the tape is cut gets the number of the value that it
  /// stands for, so that cuts change no numbers.
  void number_values() {
    uint32_t next = 0;
    for (const TapeValue& value : tape_.values()) {
      const bool is_memory = value.source == TapeValue::Source::kMemory;
      const uint32_t original = is_memory ? tape_.memory(value.number).original : TapeValue::kNone;
      number_of_.push_back(original == TapeValue::kNone ? next++ : number_of_[original]);
    }
  }

  /// Finds the op of each record, and the record of each op.
  void match_ops() {
    const std::vector<StepLog::Op>& ops = log_.ops;
    made_.op_of.resize(size());
    made_.record_of.resize(ops.size());
    uint32_t newest = 0;
    for (const auto i : c10::irange(ops.size())) {
      const uint32_t record = ops[i].record;
      const bool is_last = i + 1 == ops.size();
      if (record < size() && (is_last || ops[i + 1].record > record)) {
        made_.op_of[record] = static_cast<uint32_t>(i);
        newest = record;
      }
      made_.record_of[i] = newest;
    }
    for (const auto i : c10::irange(ops.size())) {
      for (uint32_t outer = ops[i].outer; outer != StepLog::kNone; outer = ops[outer].outer)
        made_.record_of[outer] = made_.record_of[i];
    }
  }

  void match_results() {
    for (const auto i : c10::irange(size())) {
      const TapeRecord& record = tape_.records()[i];
      const uint32_t op = made_.op_of[i];
      const auto [first, end] = log_.results_of(op);
      for (const TapeOutput& output : tape_.outputs(record)) {
        for (size_t k = first; k < end; ++k) {
          const StepLog::Result& result = log_.results[k];
          if (result.result != output.result || result.element != output.element) continue;
          made_.results.push_back(
              {number_of_[output.ref.value], op, static_cast<uint32_t>(k - first)});
          break;
        }
      }
    }
  }

  void add_values() {
    for (const auto i : c10::irange(tape_.values().size())) {
      const TapeValue& value = tape_.values()[i];
      if (number_of_[i] < profile_.values.size()) continue;
      sources_.push_back(value);
      const bool is_made = value.source == TapeValue::Source::kRecord;
      profile_.values.push_back({.maker = is_made ? static_cast<int32_t>(value.number) : -1,
                                 .storage = static_cast<int32_t>(profile_.values.size())});
    }
    blocks_.assign(profile_.values.size(), StepLog::kNone);
    spanned_.assign(profile_.values.size(), 0);
    for (const StepStructure::Result& made : made_.results)
      blocks_[made.value] = log_.results[log_.ops[made.op].first_result + made.result].block;
  }

  /// For outside memory that the step overwrites: sets its size, and how many of its bytes are kept
  /// as copies.
  void add_outside() {
    for (const auto i : c10::irange(profile_.values.size())) {
      const StepValue& first = profile_.values[static_cast<size_t>(profile_.values[i].storage)];
      if (first.maker >= 0) continue;
      const TapeValue& of = sources_[static_cast<size_t>(first.storage)];
      StepValue& value = profile_.values[i];
      if (of.source == TapeValue::Source::kHeld && value.maker >= 0) {
        value.bytes = spanned_[static_cast<size_t>(first.storage)];
        value.held_until = static_cast<int32_t>(size());
      }
      if (of.source != TapeValue::Source::kOutside) continue;
      const OutsideStorage& outside = region_.outside()[of.number];
      value.held_until = static_cast<int32_t>(size());
      if (!counts_on(device_, outside.meta().device())) continue;
      if (value.maker >= 0) {
        value.bytes = static_cast<int64_t>(outside.whole().bytes_spanned());
        continue;
      }
      outside.visit_kept([&](const TensorLayout& /*layout*/, const HeldStorage& kept) {
        value.bytes += static_cast<int64_t>(kept.size_bytes());
      });
      profile_.end_bytes -= value.bytes;
      if (outside.is_written() && outside.unpacks_afresh())
        value.unpacked_bytes = static_cast<int64_t>(outside.whole().bytes_spanned());
    }
  }

  void add_record(size_t number) {
    const TapeRecord& record = tape_.records()[number];
    StepRecord added;
    added.op = record.op->name();
    added.where = log_.places[op_of(number).place];
    added.kind = kind_of(number);
    added.reads_data = record.op->reads_data();
    for (const TapeRef& ref : tape_.refs(record)) {
      if (!ref.defined()) continue;
      const auto value = static_cast<int32_t>(number_of_[ref.value]);
      auto& reads = added.reads;
      if (std::find(reads.begin(), reads.end(), value) == reads.end()) reads.push_back(value);
      int64_t& spanned =
          spanned_[static_cast<size_t>(profile_.values[number_of_[ref.value]].storage)];
      spanned = std::max(spanned, static_cast<int64_t>(tape_.layout(ref.layout).bytes_spanned()));
    }
    for (const TapeOutput& output : tape_.outputs(record))
      added.makes.push_back(static_cast<int32_t>(number_of_[output.ref.value]));
    for (const TapeWrite& write : tape_.writes(record)) {
      const uint32_t before = number_of_[write.before];
      const uint32_t after = number_of_[write.after];
      added.writes.push_back({static_cast<int32_t>(before), static_cast<int32_t>(after)});
      profile_.values[after].storage = profile_.values[before].storage;
      blocks_[after] = blocks_[before];
    }
    profile_.records.push_back(std::move(added));
  }

  /// StepRecord::kind: a hash that is equal for records that do equal work.
  uint64_t kind_of(size_t number) const {
    const TapeRecord& record = tape_.records()[number];
    std::ostringstream text;
    text << record.op->name() << ' ' << op_of(number).gradients;
    for (const c10::IValue& value : tape_.arguments(record)) {
      const bool is_plain = !value.isTensor() && !value.isGenerator() && !value.isObject();
      text << ' ' << (is_plain ? value : c10::IValue());
    }
    const auto add = [&](const TapeRef& ref) {
      if (!ref.defined()) return;
      const TensorLayout layout = tape_.layout(ref.layout);
      text << ' ' << layout.sizes << layout.strides << layout.dtype;
    };
    for (const TapeRef& ref : tape_.refs(record)) add(ref);
    for (const TapeOutput& output : tape_.outputs(record)) add(output.ref);
    return std::hash<std::string>{}(text.str());
  }

  void add_bytes() {
    const auto alive =
        log_.bytes_alive([&](const StepLog::Block& block) { return !is_of_library(block); });
    const auto plain = log_.bytes_alive(
        [&](const StepLog::Block& block) { return !is_of_library(block) && !is_copy(block); });
    for (const auto i : c10::irange(profile_.values.size())) {
      if (blocks_[i] == StepLog::kNone) {  // no memory, as on the meta device
        if (profile_.values[i].maker >= 0)
          profile_.values[i].held_until = static_cast<int32_t>(size());
        continue;
      }
      profile_.values[i].bytes = log_.blocks[blocks_[i]].bytes;
      profile_.values[i].held_until = last_record_before(log_.blocks[blocks_[i]].died);
    }
    for (const auto i : c10::irange(size())) {
      const StepLog::Op& op = op_of(i);
      const StepLog::Moment next = i + 1 < size() ? op_of(i + 1).begin : log_.forward_end;
      StepRecord& record = profile_.records[i];
      const StepLog::Moment first = i == 0 ? 0 : op.begin;
      record.forward_bytes = *std::max_element(&alive[first], &alive[next]);
      record.copied_bytes = record.forward_bytes - *std::max_element(&plain[first], &plain[next]);
      int64_t made = 0;
      for (const int32_t value : record.makes) made += profile_.values[value].bytes;
      const int64_t most = *std::max_element(&alive[op.begin], &alive[op.end] + 1);
      record.workspace_bytes = std::max<int64_t>(0, most - alive[op.begin] - made);
    }
    profile_.end_bytes = alive[log_.forward_end];
  }

  /// True for a copy that remat made before a write: it was made in the forward while no op ran.
  bool is_copy(const StepLog::Block& block) const {
    if (block.born > log_.forward_end) return false;
    const auto next = std::upper_bound(
        log_.ops.begin(), log_.ops.end(), block.born,
        [](StepLog::Moment born, const StepLog::Op& op) { return born < op.begin; });
    const auto begun = static_cast<size_t>(next - log_.ops.begin());
    return next != log_.ops.end() && (begun == 0 || !log_.runs_at(begun - 1, block.born));
  }

  /// See Note [Memory of libraries].
  bool is_of_library(const StepLog::Block& block) const {
    return StepLog::is_of_library(block) && !is_copy(block);
  }

  /// The last record whose op had begun by `moment`.
  int32_t last_record_before(StepLog::Moment moment) const {
    if (moment >= log_.forward_end) return static_cast<int32_t>(size());
    const auto after = std::upper_bound(
        made_.op_of.begin(), made_.op_of.end(), moment,
        [&](StepLog::Moment wanted, uint32_t op) { return wanted < log_.ops[op].begin; });
    return static_cast<int32_t>(after - made_.op_of.begin()) - 1;
  }

  // A slot belongs to the record of the op that was newest when the tensor was saved. That record
  // decides the slot's segment.
  void add_slots() {
    std::vector<TapeSlot> slots;
    for (const TapePart& part : tape_.parts()) {
      if (!part.is_group) slots.insert(slots.end(), part.slots.begin(), part.slots.end());
    }
    TORCH_CHECK_NOT_IMPLEMENTED(slots.size() == log_.saves.size(), "[profile] '", profile_.name,
                                "': expected ", slots.size(), " saved tensors to be seen, got ",
                                log_.saves.size(),
                                ". This is a defect of remat: please report it.");
    for (const auto i : c10::irange(slots.size())) {
      StepSlot slot;
      const TapeRef& ref = slots[i].ref;
      if (ref.defined() && profile_.values[number_of_[ref.value]].maker >= 0)
        slot.value = static_cast<int32_t>(number_of_[ref.value]);
      const uint32_t record = log_.ops[log_.saves[i].op].record;
      slot.record = static_cast<int32_t>(std::min<size_t>(record, size() - 1));
      TORCH_CHECK_NOT_IMPLEMENTED(
          slot.value < 0 || profile_.values[static_cast<size_t>(slot.value)].maker <= slot.record,
          "[profile] '", profile_.name, "', op ", log_.ops[log_.saves[i].op].op->name(),
          ": expected a tensor that is saved when it has its value, got one of a Python class that "
          "the op saves and whose handler writes it by several ops. Leave that op out.");
      if (slots[i].is_dropped) slot.node = StepSlot::kDropped;
      profile_.slots.push_back(slot);
    }
  }

  const StepLog& log_;
  const Region& region_;
  const Tape& tape_;
  const c10::Device device_;         // the device whose memory counts
  std::vector<uint32_t> number_of_;  // The number in the profile, indexed by value of the tape.
  std::vector<TapeValue> sources_;   // Indexed by value of the profile.
  StepStructure made_;
  StepProfile& profile_ = made_.profile;
  std::vector<uint32_t> blocks_;  // Indexed by value of the profile.
  // The most bytes of a storage that a reader spans, indexed by the storage's first value.
  std::vector<int64_t> spanned_;
};

}  // namespace

StepStructure StepStructure::of(const StepLog& log, const Region& region, const Tape& tape,
                                std::string name, c10::Device device) {
  return StructureBuilder(log, region, tape, std::move(name), device).run();
}

}  // namespace remat
