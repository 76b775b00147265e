// SPDX-License-Identifier: BSD-3-Clause

// Lookups in the running SAVE call and its running op.
#include "saved_call.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include <remat/engine/op_call.h>

namespace remat {

void SavedCall::clear(std::vector<at::Tensor>& dying) noexcept {
  for (at::Tensor& argument : arguments) dying.push_back(std::move(argument));
  for (Written& entry : written) dying.push_back(std::move(entry.tensor));
  arguments.clear();
  written.clear();
  record = nullptr;
  index = 0;
  written_memory.clear();
  generators.clear();
  count = 0;
  if (!positions_.empty()) positions_ = {};
}

bool SavedCall::has_written(const at::Tensor& tensor) const {
  return written_memory.contains(memory_of(tensor));
}

size_t SavedCall::argument_on_storage_of(const at::Tensor& tensor) const {
  constexpr size_t kFew = 16;
  if (arguments.size() > kFew) return hashed_argument_on_storage_of(tensor);
  const auto is = [&](const at::Tensor& other) { return other.is_same(tensor); };
  const auto shares_storage = [&](const at::Tensor& other) {
    return other.defined() && other.has_storage() && tensor.has_storage() &&
           other.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
  };
  auto found = std::find_if(arguments.begin(), arguments.end(), is);
  if (found == arguments.end())
    found = std::find_if(arguments.begin(), arguments.end(), shares_storage);
  return found == arguments.end() ? kNone : found - arguments.begin();
}

size_t SavedCall::hashed_argument_on_storage_of(const at::Tensor& tensor) const {
  const auto storage_of = [](const at::Tensor& of) -> const void* {
    return of.defined() && of.has_storage() ? of.storage().unsafeGetStorageImpl() : nullptr;
  };
  if (positions_.empty()) {
    for (const auto i : c10::irange(arguments.size())) {
      positions_.try_emplace(arguments[i].unsafeGetTensorImpl(), i);
      if (const void* const storage = storage_of(arguments[i])) positions_.try_emplace(storage, i);
    }
  }
  auto found = positions_.find(tensor.unsafeGetTensorImpl());
  if (const void* const storage = storage_of(tensor); storage && found == positions_.end())
    found = positions_.find(storage);
  return found == positions_.end() ? kNone : found->second;
}

bool SavedCall::is_from_outside(const at::Tensor& tensor, const StorageTable& storages) const {
  const void* const memory = memory_of(tensor);
  if (!memory) return false;
  const Origin origin = storages.find(memory);
  if (!origin.is_unknown()) return origin.is_outside();
  if (!op_runs) return true;  // The table has all that the call has made.
  return op_memory.contains(memory);
}

}  // namespace remat
