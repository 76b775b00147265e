// SPDX-License-Identifier: BSD-3-Clause

// Writes and exchanges of saved memory of which autograd is not told.
#include "saved_memory.h"

#include <cstring>

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

}  // namespace

void SavedMemory::add(const at::Tensor& tensor, size_t slot) {
  const void* const memory = memory_of(tensor);
  if (!memory || !tensor.has_storage()) return;
  saved_.push_back(
      {OutsideStorage::WeakTensor(tensor.getIntrusivePtr()), memory, counter_of(tensor), slot});
}

std::optional<size_t> SavedMemory::find_unversioned(const at::Tensor& tensor) {
  if (saved_.empty() || tensor.is_inference()) return std::nullopt;
  for (; entered_ < saved_.size(); ++entered_)
    by_memory_.emplace(saved_[entered_].memory, entered_);
  const auto [begin, end] = by_memory_.equal_range(memory_of(tensor));
  for (auto entry = begin; entry != end; ++entry) {
    const Saved& saved = saved_[entry->second];
    if (saved.counter != counter_of(tensor)) return saved.slot;
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
