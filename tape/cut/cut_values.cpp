// SPDX-License-Identifier: BSD-3-Clause

// Keeping values that cross cuts, and matching the values that Cuts::keep lists.
#include <remat/tape/cut_values.h>

#include <c10/util/Exception.h>

namespace remat {

bool CutValues::keep(uint32_t value, const at::Tensor& tensor, bool is_outside, Policy policy) {
  std::shared_ptr<CutValue>& here = kept_[value];
  if (here) return false;
  std::weak_ptr<CutValue>& known = all_[value];
  here = known.lock();
  if (here) return false;
  here = std::make_shared<CutValue>(
      value, is_outside ? CallProduct::written(0, tensor) : CallProduct(0, tensor));
  known = here;
  keep_(*here->kept(), tensor, policy);
  return true;
}

std::shared_ptr<CutValue> CutValues::find(uint32_t value) const {
  const auto known = all_.find(value);
  return known == all_.end() ? nullptr : known->second.lock();
}

size_t CutValues::before_write(uint32_t value, const at::Tensor& tensor) {
  const std::shared_ptr<CutValue> known = find(value);
  if (!known || known->kept()->is_copied()) return 0;
  keep_(*known->kept(), tensor, Policy::kSave);
  return known->kept()->size_bytes();
}

void CutValues::laid_out_anew(uint32_t value, const at::Tensor& tensor) {
  if (const std::shared_ptr<CutValue> known = find(value)) known->kept()->expect_version(tensor);
}

// A listed value that is never made stays next in the list, so check_done() reports it.
void ListedValues::note_made(size_t record, size_t result, const TapeRef& ref,
                             const at::Tensor& tensor, bool is_outside) {
  if (is_done()) return;
  const Cuts::Kept& next = (*listed_)[next_];
  if (next.record != record || next.result != result) return;
  ++next_;
  is_listed_.resize(ref.value + 1);
  is_listed_[ref.value] = true;
  made_.push_back({ref, tensor, is_outside, next.policy});
}

void ListedValues::check_done(const std::string& where, size_t records) const {
  if (is_done()) return;
  const Cuts::Kept& kept = (*listed_)[next_];
  TORCH_CHECK_VALUE(false, where, ": cuts.keep[", next_,
                    "]: expected a value that the function makes in one of its ", records,
                    " records, got result ", kept.result, " of record ", kept.record,
                    ". Cut a tape of the same function: Tape::str() numbers its records.");
}

}  // namespace remat
