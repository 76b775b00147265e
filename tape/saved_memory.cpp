// SPDX-License-Identifier: BSD-3-Clause

// Writes and exchanges of saved memory of which autograd is not told.
#include "saved_memory.h"

#include <algorithm>
#include <cstring>

#include <remat/tape/byte_ranges.h>
#include <remat/tape/op_call.h>
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

bool overlap(const ByteRuns& some, const ByteRuns& others) {
  return std::any_of(some.begin(), some.end(), [&](const ByteRange& run) {
    return std::any_of(others.begin(), others.end(), [&](const ByteRange& other) {
      return run.begin < other.end && other.begin < run.end;
    });
  });
}

/// Both on one storage. Of parts in very many pieces only those that lie alike are known to: an op
/// may split what it makes into interleaved parts that have versions of their own (unsafe_chunk in
/// LSTM cells).
bool overlap(const at::Tensor& saved, const at::Tensor& written) {
  const TensorLayout a(saved);
  const TensorLayout b(written);
  if (a == b) return true;
  if (!overlap(ByteRuns{span_of(a)}, ByteRuns{span_of(b)})) return false;
  const auto some = runs_of(a);
  const auto others = runs_of(b);
  return some && others && overlap(*some, *others);
}

}  // namespace

void SavedMemory::add(const at::Tensor& tensor, size_t slot) {
  const void* const memory = memory_of(tensor);
  if (!memory || !has_layout(tensor)) return;
  saved_.push_back(
      {OutsideStorage::WeakTensor(tensor.getIntrusivePtr()), memory, counter_of(tensor), slot});
}

std::optional<size_t> SavedMemory::find_unversioned(const at::Tensor& tensor) {
  if (saved_.empty() || tensor.is_inference() || !has_layout(tensor)) return std::nullopt;
  for (; entered_ < saved_.size(); ++entered_)
    by_memory_.emplace(saved_[entered_].memory, entered_);
  const auto [begin, end] = by_memory_.equal_range(memory_of(tensor));
  for (auto entry = begin; entry != end; ++entry) {
    const Saved& saved = saved_[entry->second];
    if (saved.counter == counter_of(tensor)) continue;
    // If it is gone, its memory may be another's by now.
    const at::Tensor other(saved.tensor.lock());
    if (other.defined() && memory_of(other) == saved.memory && overlap(other, tensor))
      return saved.slot;
  }
  return std::nullopt;
}

std::optional<size_t> SavedMemory::find_exchanged() const {
  for (const Saved& saved : saved_) {
    const at::Tensor tensor(saved.tensor.lock());
    if (tensor.defined() && !is_freed(tensor) && memory_of(tensor) != saved.memory)
      return saved.slot;
  }
  return std::nullopt;
}

}  // namespace remat
