// SPDX-License-Identifier: BSD-3-Clause

// The process-wide logs of hashed results and of exchanges.
#include <remat/engine/result_aliases.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/engine/blocking_wait.h>
#include <remat/engine/op_call.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/unversioned_writes.h>

#include <remat/engine/storage_bytes.h>
#include <remat/engine/tensor_hash.h>
#include <remat/engine/unseen.h>
#include "owner_table.h"
#include "storage_bits.h"

namespace remat {
namespace {

StorageBits results_of_regions;
std::atomic<uint64_t> last_alias{0};

constexpr size_t kMostCopied = size_t{1} << 20;  // Most bytes that a hash copies from a device.

/// Like hash_of(), but on a GPU hashes only some elements, because these are copied to the host.
uint64_t hash_of_some(const at::Tensor& tensor) {
  const UnseenBelowAutograd unseen;
  at::Tensor some = tensor;
  while (!some.is_cpu() && some.nbytes() > kMostCopied) {
    const auto sizes = some.sizes();
    const auto longest = std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
    some = some.slice(longest, 0, std::nullopt, 2);
  }
  return hash_of(some);
}

/// Waits for the whole device, since any stream may be filling the tensor.
void wait_for(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  blocking_wait([&] { guard.synchronizeDevice(device.index()); });
}

/// An alias of a result, with a hash of the bytes that were there when the alias was made.
struct Alias {
  uint64_t number;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  TensorLayout layout;
  uint64_t bytes;  // Hash of the bytes.

  bool is_on(const at::Tensor& tensor) const {
    return storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
           layout == TensorLayout(tensor);
  }

  /// False if the memory has been freed.
  bool changed() const {
    auto locked = storage.lock();
    if (!locked) return false;
    const c10::Storage memory(std::move(locked));
    if (memory.nbytes() < layout.bytes_spanned()) return false;
    const Unseen unseen;
    return hash_of_some(lay_out(memory, layout)) != bytes;
  }
};

/// The aliases of all results, by version counter.
OwnerTable<c10::VariableVersion, std::vector<Alias>>& all_aliases() {
  static auto& table = *new OwnerTable<c10::VariableVersion, std::vector<Alias>>(/*few=*/256);
  return table;
}

void add(const at::Tensor& tensor, uint64_t bytes) {
  Alias alias{.number = UnversionedWrites::next(),
              .storage{tensor.storage().getWeakStorageImpl()},
              .layout = TensorLayout(tensor),
              .bytes = bytes};
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  all_aliases().change(version_counter_of(counter), counter, [&](std::vector<Alias>& aliases) {
    last_alias = std::max(last_alias.load(), alias.number);
    if (!aliases.empty()) {
      Alias& last = aliases.back();
      // No byte has changed since `last`, so one entry serves both: `last` with the new number.
      if (last.is_on(tensor) && last.bytes == bytes) return void(last.number = alias.number);
    }
    aliases.push_back(std::move(alias));
  });
}

std::vector<Alias> find_after(uint64_t number, const void* versions) {
  std::vector<Alias> later;
  all_aliases().read(versions, [&](const std::vector<Alias>& aliases) {
    for (const Alias& alias : aliases) {
      if (alias.number > number) later.push_back(alias);
    }
  });
  return later;
}

std::atomic<uint64_t> last_exchange{0};

/// The number of each tensor's last exchange, and whether it left the tensor without elements. The
/// addresses are never dereferenced.
using Exchanges = std::unordered_map<const void*, std::pair<uint64_t, bool>>;

/// Exchanges of all tensors, by version counter.
OwnerTable<c10::VariableVersion, Exchanges>& exchanges() {
  static auto& table = *new OwnerTable<c10::VariableVersion, Exchanges>(/*few=*/256);
  return table;
}

}  // namespace

void note_results(c10::ArrayRef<at::Tensor> results) noexcept {
  for (const at::Tensor& result : results) {
    if (result.defined() && result.has_storage())
      results_of_regions.add(result.storage().unsafeGetStorageImpl());
  }
}

bool may_be_result(const at::Tensor& tensor) noexcept {
  return has_layout(tensor) && memory_of(tensor) && !tensor.is_inference() &&
         (tensor.is_cpu() || (tensor.is_cuda() && has_memory(tensor.storage()))) &&
         results_of_regions.may_have(tensor.storage().unsafeGetStorageImpl());
}

void before_result_alias(const at::Tensor& result) {
  wait_for(result.device());
  add(result, hash_of_some(result));
}

bool changed_by_alias(const SavedVersion& saved) {
  if (C10_LIKELY(saved.writes() >= last_alias.load(std::memory_order_acquire))) return false;
  const std::vector<Alias> later = find_after(saved.writes(), saved.counter());
  return std::any_of(later.begin(), later.end(),
                     [](const Alias& alias) { return alias.changed(); });
}

void note_exchange(const at::Tensor& tensor) {
  const c10::TensorImpl* const address = tensor.unsafeGetTensorImpl();
  const bool is_given_up = tensor.has_storage() && tensor.numel() == 0;
  const c10::VariableVersion& counter = address->version_counter();
  exchanges().change(version_counter_of(counter), counter, [&](Exchanges& tensors) {
    const uint64_t number = UnversionedWrites::next();
    tensors[address] = {number, is_given_up};
    last_exchange.store(number, std::memory_order_release);
  });
}

MemoryNow memory_now(const SavedVersion& saved) {
  if (C10_LIKELY(saved.writes() >= last_exchange.load(std::memory_order_acquire)))
    return MemoryNow::kThere;
  MemoryNow now = MemoryNow::kThere;
  exchanges().read(saved.counter(), [&](const Exchanges& tensors) {
    const auto exchange = tensors.find(saved.tensor());
    if (exchange == tensors.end() || exchange->second.first <= saved.writes()) return;
    now = exchange->second.second ? MemoryNow::kGivenUp : MemoryNow::kElsewhere;
  });
  return now;
}

}  // namespace remat
