// SPDX-License-Identifier: BSD-3-Clause

// Finishing a tape when its forward has ended: which records stay, and which tensors it keeps.
#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <memory>
#include <vector>

#include <remat/tape/tensor_layout.h>

#include "storage_bytes.h"
#include "tape_recorder.h"
#include "unseen.h"

namespace remat {

void TapeRecorder::finish(OutsideLog& outside) {
  if (op_.runs) give_up("an op that threw, after which the function went on");
  if (gave_up()) return refuse_if_strict();  // The function may have caught the error.
  if (cutter_) cutter_->finish(tape_.records_.size());
  const std::vector<bool> needed = cutter_ ? cutter_->needed() : needed_values();
  if (!cutter_) drop_tail(needed);
  drop_held(needed);
  hold_outside(outside, needed);
  hold_slots();
  outside_tensors_.clear();
  op_.written.clear();
  if (!tape_.has_hashes_) tape_.op_hashes_ = {};
}

std::vector<bool> TapeRecorder::needed_values() const {
  std::vector<bool> needed(tape_.values_.size());
  for (const TapeSlot& slot : tape_.parts_[0].slots)
    for_each_ref(slot, [&](const TapeRef& ref) { needed[ref.value] = true; });
  const auto is_needed = [&](uint32_t value) { return needed[value]; };
  for (auto record = tape_.records_.rbegin(); record != tape_.records_.rend(); ++record) {
    if (!record->op->reads_data() || !tape_.makes_any(*record, is_needed)) continue;
    for (const auto i : c10::irange(record->ref_count)) {
      const TapeRef& ref = tape_.refs(*record)[i];
      if (ref.defined()) needed[ref.value] = true;
    }
  }
  return needed;
}

/// Drops the records after the last needed one.
void TapeRecorder::drop_tail(const std::vector<bool>& needed) {
  auto& records = tape_.records_;
  const auto is_needed = [&](uint32_t value) { return needed[value]; };
  while (!records.empty() && !tape_.makes_any(records.back(), is_needed)) {
    const TapeRecord& record = records.back();
    tape_.arguments_.resize(record.argument);
    tape_.refs_.resize(record.ref);
    tape_.outputs_.resize(record.output);
    tape_.writes_.resize(record.write);
    tape_.generators_.erase(tape_.generators_.begin() + record.generator, tape_.generators_.end());
    records.pop_back();
  }
}

void TapeRecorder::drop_held(const std::vector<bool>& needed) {
  for (const auto i : c10::irange(needed.size())) {
    const TapeValue& value = tape_.values_[i];
    if (!needed[i] && value.source == TapeValue::Source::kHeld) tape_.held_[value.number].reset();
  }
}

void TapeRecorder::hold_outside(OutsideLog& outside, const std::vector<bool>& needed) {
  tape_.outside_.resize(outside_tensors_.size());
  std::vector<bool> starts_from(outside.size());
  for (const auto i : c10::irange(needed.size())) {
    const TapeValue& value = tape_.values_[i];
    if (!needed[i] || value.source != TapeValue::Source::kOutside) continue;
    const size_t number = value.number;
    starts_from[number] = true;
    if (outside[number].is_written() || outside[number].whole_argument()) continue;
    const at::Tensor& tensor = outside_tensors_[number];
    // Not as slots of an outer region: its replay does not find a cast that its forward took from
    // autocast's cache. Leaves are leaves in the replay, too, but views of them may not be. Nobody
    // keeps gathered weights.
    const bool is_weight =
        (tensor.is_leaf() && tensor.requires_grad()) || outside[number].is_gathered();
    if (is_weight || tensor.is_inference() || outside[number].is_cast()) {
      // Without its base, which may later get a node that owns this region: torch.jit gives one to
      // detached weights when its graph has run.
      tape_.outside_[number].leaf = tensor.is_view() ? variable_data(tensor) : tensor;
    } else {
      hold_whole(tape_.outside_[number], tensor);
    }
  }
  for (const auto i : c10::irange(outside.size())) {
    if (!starts_from[i]) outside[i].drop_kept();
  }
}

/// Holds the whole storage, of which `tensor` may be a part: hooks may keep only what they get.
void TapeRecorder::hold_whole(Tape::Outside& outside, const at::Tensor& tensor) {
  outside.meta.emplace(tensor);
  outside.storage = HeldStorage(tensor);
  if (!has_layout(tensor)) {
    outside.saved.emplace(variable_data(tensor), /*is_output=*/false);
    return;
  }
  outside.size_bytes = tensor.storage().nbytes();
  outside.whole = whole_layout(tensor);
  const bool is_whole = *outside.whole == TensorLayout(tensor);
  outside.saved.emplace(
      is_whole ? variable_data(tensor) : lay_out(tensor.storage(), *outside.whole),
      /*is_output=*/false);
}

void TapeRecorder::hold_slots() {
  for (const auto& [part, slot, tensor] : held_slots_) {
    tape_.held_slots_.push_back({tape_.parts_.size() > 1
                                     ? c10::str("slot ", slot, " of part ", part)
                                     : c10::str("slot ", slot),
                                 TensorMeta(tensor), HeldStorage(tensor)});
    tape_.parts_[part].slots[slot].held =
        std::make_shared<const torch::autograd::SavedVariable>(tensor, /*is_output=*/false);
  }
  held_slots_.clear();
}

}  // namespace remat
