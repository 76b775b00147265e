// SPDX-License-Identifier: BSD-3-Clause

#include "step_variants.h"

#include <algorithm>
#include <string>

namespace remat {
namespace {

constexpr size_t kMostChanges = 64;  // per signature

/// True if a step with this signature may run as the variant.
bool serves(const StepVariant& variant, const StepSignature& signature) {
  return variant.signature() == signature ||
         (variant.plan() && variant.signature().covers(signature));
}

bool are_equal(const ExpectedTape::Record& a, const ExpectedTape::Record& b) {
  return a.op == b.op && a.reads == b.reads && a.makes == b.makes;
}

bool begin_alike(const ExpectedTape& a, const ExpectedTape& b, size_t records) {
  return a.records.size() >= records && b.records.size() >= records &&
         std::equal(a.records.begin(), a.records.begin() + static_cast<std::ptrdiff_t>(records),
                    b.records.begin(), are_equal);
}

/// True if two slots may be the same. A tensor that is saved between two records is noted at either
/// of them, so Slot::record may differ by one.
bool are_alike(const ExpectedTape::Slot& a, const ExpectedTape::Slot& b) {
  return a.value == b.value && a.record <= b.record + 1 && b.record <= a.record + 1;
}

size_t slots_before(const ExpectedTape& tape, size_t record) {
  const auto end = std::find_if(tape.slots.begin(), tape.slots.end(),
                                [&](const auto& slot) { return slot.record >= record; });
  return static_cast<size_t>(end - tape.slots.begin());
}

/// True if `difference` is what a step with the ops and slots of `tape` would report first when
/// `other` is expected.
bool differs_so(const ExpectedTape& tape, const ExpectedTape& other,
                const TapeDifference& difference) {
  const size_t record = difference.record;
  const bool is_in_slots = difference.got_slot || difference.in_slot;
  const size_t slots = is_in_slots ? difference.slots : slots_before(other, record);
  if (!begin_alike(tape, other, std::min(record, other.records.size()))) return false;
  if (tape.slots.size() < slots || other.slots.size() < slots) return false;
  if (!std::equal(tape.slots.begin(), tape.slots.begin() + static_cast<std::ptrdiff_t>(slots),
                  other.slots.begin(), are_alike))
    return false;
  const bool is_end = record >= tape.records.size();
  if (difference.got != (is_end ? std::string() : tape.records[record].op)) return false;
  if (difference.got_slot)
    return slots < tape.slots.size() && are_alike(tape.slots[slots], *difference.got_slot);
  if (difference.in_slot) return tape.slots.size() == slots;
  if (difference.most_bytes > 0) return tape.records[record].most_bytes >= difference.got_bytes;
  const bool is_other_end = record >= other.records.size();
  return is_end != is_other_end || !are_equal(tape.records[record], other.records[record]);
}

/// True if the tape ended without having saved anything.
bool saves_nothing(const TapeDifference& difference) {
  return difference.slots == 0 && !difference.got_slot && difference.in_slot;
}

}  // namespace

std::shared_ptr<StepVariant> StepVariants::Sequence::next() const {
  for (const Context& context : {Context(before, now), Context({}, now)}) {
    if (const auto change = changes.find(context); change != changes.end())
      return change->second.lock();
  }
  return last.lock();
}

void StepVariants::Sequence::add(const std::shared_ptr<StepVariant>& variant) {
  const bool is_first = now.steps == 0;
  if (!is_first && now.kind == variant.get()) {
    for (const Context& context : {Context(before, now), Context({}, now)}) changes.erase(context);
    ++now.steps;
    return;
  }
  if (changes.size() >= kMostChanges) changes.clear();
  if (!is_first) changes[{before, now}] = changes[{{}, now}] = variant;
  before = now;
  now = {variant.get(), 1};
  last = variant;
}

/// The signature of the variant as which a step would run: one equal to `signature`, else the
/// smallest that covers it; null if there is none.
const StepSignature* StepVariants::known_signature(const StepSignature& signature) const {
  const StepSignature* smallest = nullptr;
  for (const auto& variant : variants_) {
    if (variant->signature() == signature) return &variant->signature();
    if (serves(*variant, signature) && (!smallest || smallest->covers(variant->signature())))
      smallest = &variant->signature();
  }
  return smallest;
}

std::shared_ptr<StepVariant> StepVariants::expected(const StepSignature& signature) const {
  const StepSignature* const known = known_signature(signature);
  if (!known) return nullptr;
  const auto sequence = sequences_.find(*known);
  std::shared_ptr<StepVariant> next =
      sequence == sequences_.end() ? any(*known) : sequence->second.next();
  if (!next || !serves(*next, signature)) return nullptr;
  // A variant that no plan fits raises an error, so measure the step first to be sure of its kind.
  return next->limit().empty() ? next : nullptr;
}

std::shared_ptr<StepVariant> StepVariants::any(const StepSignature& signature) const {
  std::shared_ptr<StepVariant> newest;
  for (const auto& variant : variants_) {
    if (serves(*variant, signature) && (!newest || variant->last_used > newest->last_used))
      newest = variant;
  }
  return newest;
}

bool StepVariants::measures_another(const StepVariant& variant, int steps) const {
  return std::any_of(variants_.begin(), variants_.end(), [&](const auto& other) {
    return other.get() != &variant && other->wants_measuring() && other->measured() < steps;
  });
}

bool StepVariants::may_measure() const {
  return std::max(measurements_, in_vain_) < AutoCheckpoint::kMostMeasurements;
}

int64_t StepVariants::largest_budget() const {
  int64_t bytes = 0;
  for (const auto& variant : variants_) {
    if (variant->plan()) bytes = std::max(bytes, variant->plan()->budget_bytes);
  }
  return bytes;
}

std::shared_ptr<StepVariant> StepVariants::add(std::shared_ptr<StepVariant> variant) {
  for (const auto& known : variants_) {
    if (!(known->signature() == variant->signature()) || !known->is_same(*variant)) continue;
    ++in_vain_;
    return known;
  }
  ++measurements_;
  if (variants_.size() == AutoCheckpoint::kMostVariants) forget_least_used();
  variants_.push_back(variant);
  return variant;
}

void StepVariants::forget_least_used() {
  variants_.erase(
      std::min_element(variants_.begin(), variants_.end(),
                       [](const auto& a, const auto& b) { return a->last_used < b->last_used; }));
  std::erase_if(sequences_, [&](const auto& sequence) {
    return std::none_of(variants_.begin(), variants_.end(), [&](const auto& variant) {
      return variant->signature() == sequence.first;
    });
  });
}

void StepVariants::came(const StepSignature& signature,
                        const std::shared_ptr<StepVariant>& variant) {
  if (const StepSignature* const known = known_signature(signature))
    sequences_[*known].add(variant);
}

std::shared_ptr<StepVariant> StepVariants::find(const StepVariant& ran,
                                                const TapeDifference& difference) const {
  if (ran.cuts()->expected->any_ops) return nullptr;  // the ops of `ran` are not known
  for (const auto& variant : variants_) {
    if (variant.get() == &ran || !(variant->signature() == ran.signature())) continue;
    if (!variant->cuts()) continue;
    const auto& tape = variant->cuts()->expected;
    const bool is_it = tape->any_ops ? saves_nothing(difference)
                                     : differs_so(*tape, *ran.cuts()->expected, difference);
    if (is_it) return variant;
  }
  return nullptr;
}

}  // namespace remat
