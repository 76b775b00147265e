// SPDX-License-Identifier: BSD-3-Clause

// Changes of saved memory of which autograd is not told.
#include "saved_memory.h"

#include <algorithm>
#include <cstring>

#include <remat/tape/held_storage.h>
#include <remat/tape/tensor_layout.h>

namespace remat {
namespace {

/// See SavedVersion::is_of().
const void* counter_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  static_assert(sizeof(version) == sizeof(void*));
  const void* counter = nullptr;
  std::memcpy(&counter, &version, sizeof(counter));
  return counter;
}

ByteRange span_of_dense(const at::Tensor& tensor) {
  const size_t begin = tensor.storage_offset() * tensor.itemsize();
  return {begin, begin + tensor.numel() * tensor.itemsize()};
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
}

ByteRange span_of(const at::Tensor& tensor) {
  return is_dense(tensor) ? span_of_dense(tensor) : span_of(TensorLayout(tensor));
}

bool overlap(const ByteRange& some, const ByteRange& other) {
  return some.begin < other.end && other.begin < some.end;
}

bool overlap(const ByteRuns& some, const ByteRuns& others) {
  return std::any_of(some.begin(), some.end(), [&](const ByteRange& run) {
    return std::any_of(others.begin(), others.end(),
                       [&](const ByteRange& other) { return overlap(run, other); });
  });
}

}  // namespace

void SavedMemory::add(const at::Tensor& tensor, const Slot& slot) {
  if (!has_layout(tensor) || !memory_of(tensor)) return;
  saved_.push_back({OutsideStorage::WeakTensor(tensor.getIntrusivePtr()), weak_storage(tensor),
                    counter_of(tensor), &slot, span_of(tensor), is_dense(tensor)});
}

// An op may split what it makes into interleaved parts that have versions of their own
// (unsafe_chunk in LSTM cells). Of parts in very many pieces only those that lie alike are known to
// overlap.
bool SavedMemory::overlap(const Saved& saved, const at::Tensor& written) {
  if (!remat::overlap(saved.span, span_of(written))) return false;
  if (saved.is_dense && is_dense(written)) return true;
  const at::Tensor tensor(saved.tensor.lock());
  if (!tensor.defined()) return true;
  const TensorLayout a(tensor);
  const TensorLayout b(written);
  if (a == b) return true;
  const auto some = runs_of(a);
  const auto others = runs_of(b);
  return some && others && remat::overlap(*some, *others);
}

void SavedMemory::note_write(const at::Tensor& tensor, const OpInfo& op) {
  if (saved_.empty() || tensor.is_inference() || !has_layout(tensor)) return;
  for (; entered_ < saved_.size(); ++entered_)
    by_storage_.emplace(saved_[entered_].storage._unsafe_get_target(), entered_);
  const auto [begin, end] = by_storage_.equal_range(tensor.storage().unsafeGetStorageImpl());
  for (auto entry = begin; entry != end; ++entry) {
    Saved& saved = saved_[entry->second];
    if (!saved.written_by && saved.counter != counter_of(tensor) && overlap(saved, tensor))
      saved.written_by = &op;
  }
}

SavedMemory::Change SavedMemory::find_change() const {
  for (const Saved& saved : saved_) {
    if (!saved.slot->live) continue;
    if (saved.written_by) return {saved.slot, saved.written_by};
    const at::Tensor tensor(saved.tensor.lock());
    const bool is_exchanged =
        tensor.defined() && !is_freed(tensor) &&
        tensor.storage().unsafeGetStorageImpl() != saved.storage._unsafe_get_target();
    if (is_exchanged) return {saved.slot, nullptr};
  }
  return {};
}

}  // namespace remat
