// SPDX-License-Identifier: BSD-3-Clause

// Searching from a unit's slots back to the values that the unit reads but does not make.
#include <remat/tape/unit_inputs.h>

#include <c10/util/irange.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace remat {
namespace {

using Found = UnitInputs::Found;
using Positions = UnitInputs::Positions;

class InputSearch {
 public:
  using Given = c10::function_ref<std::shared_ptr<const CutValue>(uint32_t value)>;

  InputSearch(const Tape& tape, const TapePart& part, Given given, std::vector<bool>& needed)
      : tape_(tape), part_(part), given_(given), needed_(needed) {}

  // Reads each slot's `live` only once, because other threads may free slots meanwhile.
  Found run(const Region& region) {
    std::vector<size_t> live;
    for (const auto i : c10::irange(part_.slots.size())) {
      if (!region.slots()[i].live) continue;
      for_each_ref(part_.slots[i], [&](const TapeRef& ref) { need(ref); });
      if (part_.slots[i].ref.defined()) live.push_back(i);
    }
    std::vector<uint32_t> running = walk_back();
    std::reverse(running.begin(), running.end());
    trace(running);
    found_.of_slot.resize(part_.slots.size());
    for (const size_t slot : live) found_.of_slot[slot] = values_[part_.slots[slot].ref.value].from;
    return std::move(found_);
  }

 private:
  enum class Maker : uint8_t { kUnknown, kUnit, kGiven };
  struct Value {
    Maker maker = Maker::kUnknown;
    Positions from;
  };

  bool is_of_unit(uint32_t record) const { return record >= part_.begin && record < part_.end; }

  void need(const TapeRef& ref) {
    if (!ref.defined()) return;
    Value& value = values_[ref.value];
    if (value.maker != Maker::kUnknown) return;
    needed_[ref.value] = true;
    std::shared_ptr<const CutValue> given = given_(ref.value);
    value.maker = given ? Maker::kGiven : Maker::kUnit;
    if (given) {
      value.from.push_back(static_cast<uint32_t>(found_.values.size()));
      found_.values.push_back(std::move(given));
      return;
    }
    const TapeValue& of = tape_.values()[ref.value];
    if (of.source == TapeValue::Source::kRecord && !is_of_unit(of.number))
      found_.missing.push_back(ref.value);
  }

  /// Returns the records that replays of the unit run, the last record first.
  std::vector<uint32_t> walk_back() {
    std::vector<uint32_t> running;
    for (uint32_t i = part_.end; i > part_.begin; --i) {
      const TapeRecord& record = tape_.records()[i - 1];
      const bool runs = tape_.makes_any(record, [&](uint32_t value) {
        const auto known = values_.find(value);
        return known != values_.end() && known->second.maker == Maker::kUnit;
      });
      if (!runs) continue;
      running.push_back(i - 1);
      if (!record.op->reads_data()) continue;
      for (const TapeRef& ref : tape_.refs(record)) need(ref);
    }
    return running;
  }

  /// Finds the inputs from which each value is made, record by record.
  void trace(const std::vector<uint32_t>& running) {
    for (const uint32_t number : running) {
      const TapeRecord& record = tape_.records()[number];
      Positions from;
      for (const TapeRef& ref : tape_.refs(record)) {
        if (record.op->reads_data() && ref.defined()) from = both(from, values_[ref.value].from);
      }
      tape_.makes_any(record, [&](uint32_t value) {
        const auto known = values_.find(value);
        if (known != values_.end() && known->second.maker == Maker::kUnit)
          known->second.from = from;
        return false;
      });
    }
  }

  static Positions both(const Positions& a, const Positions& b) {
    Positions all;
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
    return all;
  }

  const Tape& tape_;
  const TapePart& part_;
  const Given given_;
  std::vector<bool>& needed_;
  std::unordered_map<uint32_t, Value> values_;
  Found found_;
};

}  // namespace

UnitInputs::Found UnitInputs::find(
    const Tape& tape, const TapePart& part, const Region& region,
    c10::function_ref<std::shared_ptr<const CutValue>(uint32_t value)> given,
    std::vector<bool>& needed) {
  return InputSearch(tape, part, given, needed).run(region);
}

// If another thread frees a slot, then either `live` is false here already, or that thread's
// release() gets the lock after this call.
void UnitInputs::set(Found found, const Region& region) {
  Values unread;  // Destroyed after the lock is released, because a destructor may call release().
  const std::lock_guard<std::mutex> lock(mutex_);
  of_slot_ = std::move(found.of_slot);
  values_.swap(found.values);
  readers_.assign(values_.size(), 0);
  for (const auto slot : c10::irange(of_slot_.size())) {
    if (!region.slots()[slot].live) of_slot_[slot].clear();
    for (const uint32_t input : of_slot_[slot]) ++readers_[input];
  }
  for (const auto i : c10::irange(values_.size())) {
    if (readers_[i] == 0) unread.push_back(std::move(values_[i]));
  }
}

UnitInputs::Values UnitInputs::held() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Values all;
  std::copy_if(values_.begin(), values_.end(), std::back_inserter(all),
               [](const auto& value) { return value != nullptr; });
  return all;
}

// Frees one value at a time, because its destructor may call release() again. Allocates nothing.
void UnitInputs::release(size_t slot) noexcept {
  for (;;) {
    std::shared_ptr<const CutValue> dead;  // Destroyed after the lock is released.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (slot >= of_slot_.size() || of_slot_[slot].empty()) return;
    const uint32_t input = of_slot_[slot].back();
    of_slot_[slot].pop_back();
    if (--readers_[input] == 0) dead.swap(values_[input]);
  }
}

}  // namespace remat
