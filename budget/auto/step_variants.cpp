// SPDX-License-Identifier: BSD-3-Clause

#include "step_variants.h"

#include <algorithm>
#include <string>

namespace remat {
namespace {

constexpr size_t kMostChanges = 64;  // remembered for a signature

/// True if a step with that signature may run as the variant.
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

/// True if a tape that is `tape` differs like that from the `other`, which says what its ops are.
bool differs_so(const ExpectedTape& tape, const ExpectedTape& other,
                const TapeDifference& difference) {
  const size_t record = difference.record;
  if (!other.any_ops && !begin_alike(tape, other, record)) return false;
  const bool is_end = record >= tape.records.size();
  if (difference.got != (is_end ? std::string() : tape.records[record].op)) return false;
  if (other.any_ops) return true;
  if (difference.in_slot) return tape.slots != other.slots;
  if (difference.most_bytes > 0) return tape.records[record].most_bytes >= difference.got_bytes;
  const bool is_other_end = record >= other.records.size();
  return is_end != is_other_end || !are_equal(tape.records[record], other.records[record]);
}

}  // namespace

std::shared_ptr<StepVariant> StepVariants::Sequence::next() const {
  const auto change = changes.find({last.lock().get(), in_a_row});
  return (change == changes.end() ? last : change->second).lock();
}

void StepVariants::Sequence::add(const std::shared_ptr<StepVariant>& variant) {
  const std::shared_ptr<StepVariant> before = last.lock();
  const bool is_first = in_a_row == 0;
  if (!is_first && before == variant) {
    changes.erase({before.get(), in_a_row++});
    return;
  }
  if (changes.size() == kMostChanges) changes.clear();
  if (!is_first) changes[{before.get(), in_a_row}] = variant;
  last = variant;
  in_a_row = 1;
}

/// Of the variants that such a step would run as: its own, else the smallest that covers it.
const StepSignature* StepVariants::known_signature(const StepSignature& signature) const {
  const StepSignature* smallest = nullptr;
  for (const auto& variant : variants_) {
    if (variant->signature() == signature) return &variant->signature();
    if (serves(*variant, signature) && (!smallest || smallest->covers(variant->signature())))
      smallest = &variant->signature();
  }
  return smallest;
}

size_t StepVariants::sequence_of(const StepSignature& signature) const {
  const auto known = std::find_if(sequences_.begin(), sequences_.end(), [&](const auto& sequence) {
    return sequence.signature == signature;
  });
  return static_cast<size_t>(known - sequences_.begin());
}

std::shared_ptr<StepVariant> StepVariants::expected(const StepSignature& signature) const {
  const StepSignature* const known = known_signature(signature);
  if (!known) return nullptr;
  const size_t number = sequence_of(*known);
  const bool has_come = number < sequences_.size();
  std::shared_ptr<StepVariant> next = has_come ? sequences_[number].next() : any(*known);
  if (!next || !serves(*next, signature)) return nullptr;
  // One that raises is to be what the step is.
  const bool is_only_one = std::count_if(variants_.begin(), variants_.end(), [&](const auto& each) {
                             return serves(*each, signature);
                           }) == 1;
  return next->limit().empty() || is_only_one ? next : nullptr;
}

std::shared_ptr<StepVariant> StepVariants::any(const StepSignature& signature) const {
  std::shared_ptr<StepVariant> newest;
  for (const auto& variant : variants_) {
    if (serves(*variant, signature) && (!newest || variant->last_used > newest->last_used))
      newest = variant;
  }
  return newest;
}

std::shared_ptr<StepVariant> StepVariants::add(std::shared_ptr<StepVariant> variant) {
  for (const auto& known : variants_) {
    if (known->signature() == variant->signature() && known->is_same(*variant)) return known;
  }
  if (variants_.size() == AutoCheckpoint::kMostVariants) forget_least_used();
  variants_.push_back(variant);
  return variant;
}

void StepVariants::forget_least_used() {
  variants_.erase(
      std::min_element(variants_.begin(), variants_.end(),
                       [](const auto& a, const auto& b) { return a->last_used < b->last_used; }));
  std::erase_if(sequences_, [&](const Sequence& sequence) {
    return std::none_of(variants_.begin(), variants_.end(), [&](const auto& variant) {
      return variant->signature() == sequence.signature;
    });
  });
}

void StepVariants::came(const StepSignature& signature,
                        const std::shared_ptr<StepVariant>& variant) {
  const StepSignature* const known = known_signature(signature);
  if (!known) return;
  const size_t number = sequence_of(*known);
  if (number == sequences_.size()) sequences_.push_back({.signature = *known});
  sequences_[number].add(variant);
}

std::shared_ptr<StepVariant> StepVariants::find(const StepVariant& ran,
                                                const TapeDifference& difference) const {
  std::shared_ptr<StepVariant> without_ops;
  for (const auto& variant : variants_) {
    if (variant.get() == &ran || !(variant->signature() == ran.signature())) continue;
    const auto& tape = variant->cuts().expected;
    if (!tape) continue;
    if (tape->any_ops) {
      without_ops = variant;
    } else if (differs_so(*tape, *ran.cuts().expected, difference)) {
      return variant;
    }
  }
  return without_ops;
}

}  // namespace remat
