// SPDX-License-Identifier: BSD-3-Clause

// Detecting changes to saved memory that autograd does not notice.
#include <remat/engine/saved_memory.h>

#include <algorithm>
#include <utility>

#include <remat/engine/data_hooks.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/tensor_hash.h>
#include <remat/engine/tensor_meta.h>

namespace remat {
namespace {

bool is_dense(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
}

/// The tensor's bytes if it has no gaps; otherwise all bytes.
ByteRange bytes_of(const at::Tensor& tensor) {
  if (!is_dense(tensor)) return {.begin = 0, .end = ~size_t{0}};
  const size_t begin = tensor.storage_offset() * tensor.itemsize();
  return {.begin = begin, .end = begin + tensor.numel() * tensor.itemsize()};
}

bool overlap(const ByteRange& some, const ByteRange& other) {
  return some.begin < other.end && other.begin < some.end;
}

/// True if the layouts share bytes. An op may split its result into interleaved parts with their
/// own version counters (unsafe_chunk in LSTM cells). Layouts with too many contiguous runs to list
/// count as overlapping only if they are equal.
bool overlap(const TensorLayout& some, const TensorLayout& other) {
  if (some == other) return true;
  const auto runs = runs_of(some);
  const auto others = runs_of(other);
  return runs && others && std::any_of(runs->begin(), runs->end(), [&](const ByteRange& run) {
           return std::any_of(others->begin(), others->end(),
                              [&](const ByteRange& range) { return overlap(run, range); });
         });
}

}  // namespace

void SavedMemory::add(const at::Tensor& tensor, const at::Tensor& original,
                      const std::shared_ptr<const Region>& region, const Slot& slot,
                      bool is_input) {
  if (!has_layout(tensor) || !memory_of(tensor)) return;
  if (regions_.empty() || regions_.back() != region) regions_.push_back(region);
  const c10::Storage& storage = tensor.storage();
  const c10::StorageImpl* const address = storage.unsafeGetStorageImpl();
  Saved& saved = saved_.emplace_back(Saved{.slot = &slot,
                                           .tensor = original.unsafeGetTensorImpl(),
                                           .storage = address,
                                           .versions = version_counter_of(original),
                                           .bytes = bytes_of(tensor)});
  if (!slot.version.is_of(original))
    saved.counter = original.unsafeGetTensorImpl()->version_counter();
  if (is_input || may_have_other_versions(address)) watch(saved, storage, TensorLayout(tensor));
}

void SavedMemory::watch(Saved& saved, const c10::Storage& storage,
                        std::optional<TensorLayout> layout) {
  if (std::exchange(saved.is_watched, true)) return;
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(storage.getWeakStorageImpl());
  watched_.emplace(saved.storage, Watched{.slot = saved.slot,
                                          .storage = std::move(weak),
                                          .versions = saved.versions,
                                          .bytes = saved.bytes,
                                          .layout = std::move(layout)});
}

void SavedMemory::after_data(const at::Tensor& tensor) {
  if (!has_layout(tensor) || !memory_of(tensor)) return;
  const void* const versions = version_counter_of(tensor);
  const c10::Storage& storage = tensor.storage();
  for (Saved& saved : saved_) {
    if (saved.versions == versions && saved.storage == storage.unsafeGetStorageImpl())
      watch(saved, storage, {});
  }
}

void SavedMemory::after_data(const c10::Storage& storage) {
  for (Saved& saved : saved_) {
    if (saved.storage == storage.unsafeGetStorageImpl()) watch(saved, storage, {});
  }
}

void SavedMemory::before_set_data(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  const void* const versions = version_counter_of(tensor);
  for (const Saved& saved : saved_) {
    if (saved.tensor == impl && saved.versions == versions) exchanged_.push_back(saved.slot);
  }
}

void SavedMemory::before_outside_write(const at::Tensor& tensor) {
  if (tensor.is_inference() || !has_layout(tensor)) return;
  const c10::Storage& storage = tensor.storage();
  for (Saved& saved : saved_) {
    if (saved.storage != storage.unsafeGetStorageImpl()) continue;
    if (saved.versions != version_counter_of(tensor)) watch(saved, storage, {});
  }
}

void SavedMemory::before_write(const at::Tensor& tensor, const OpInfo& op) {
  after_writes();  // Finishes the writes of an op that has thrown.
  if (watched_.empty() || tensor.is_inference() || !has_layout(tensor)) return;
  const auto [begin, end] = watched_.equal_range(tensor.storage().unsafeGetStorageImpl());
  for (auto entry = begin; entry != end; ++entry) {
    Watched& watched = entry->second;
    if (watched.written_by || watched.versions == version_counter_of(tensor)) continue;
    if (!overlap(watched.bytes, bytes_of(tensor))) continue;
    if (watched.layout && !overlap(*watched.layout, TensorLayout(tensor))) continue;
    writes_.push_back({.to = &watched, .op = &op, .tensor = tensor, .bytes = hash_of(tensor)});
  }
}

void SavedMemory::finish_writes() {
  for (const Write& write : std::exchange(writes_, {})) {
    if (hash_of(write.tensor) != write.bytes) write.to->written_by = write.op;
  }
}

std::pair<const Slot*, const OpInfo*> SavedMemory::find_change() {
  after_writes();
  for (const Slot* const slot : exchanged_) {
    if (slot->live) return {slot, nullptr};
  }
  for (const auto& [address, watched] : watched_) {
    if (watched.slot->live && watched.written_by) return {watched.slot, watched.written_by};
  }
  return {nullptr, nullptr};
}

}  // namespace remat
