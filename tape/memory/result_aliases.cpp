// SPDX-License-Identifier: BSD-3-Clause

// What lay in results of regions when somebody asked for their data.
#include <remat/tape/result_aliases.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include <remat/tape/op_call.h>
#include <remat/tape/tensor_layout.h>
#include <remat/tape/unversioned_writes.h>

#include "storage_bits.h"
#include "tensor_hash.h"
#include "unseen.h"
#include "version_table.h"

namespace remat {
namespace {

StorageBits results_of_regions;
std::atomic<uint64_t> last_alias{0};

/// Of an alias: the bytes that it was laid on.
struct Alias {
  uint64_t number;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  TensorLayout layout;
  uint64_t bytes;  // a hash

  bool is_on(const at::Tensor& tensor) const {
    return storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
           layout == TensorLayout(tensor);
  }

  /// False if nobody has the memory any more, or it has been freed.
  bool changed() const {
    auto locked = storage.lock();
    if (!locked) return false;
    const c10::Storage memory(std::move(locked));
    if (memory.nbytes() < layout.bytes_spanned()) return false;
    const Unseen unseen;
    return hash_of(lay_out(memory, layout)) != bytes;
  }
};

/// Of all results with the same versions.
VersionTable<std::vector<Alias>>& all_aliases() {
  static auto& table = *new VersionTable<std::vector<Alias>>(/*few=*/256);
  return table;
}

void add(const at::Tensor& tensor, uint64_t bytes) {
  Alias alias{.number = UnversionedWrites::next(),
              .storage{tensor.storage().getWeakStorageImpl()},
              .layout = TensorLayout(tensor),
              .bytes = bytes};
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  all_aliases().change(counter, [&](std::vector<Alias>& aliases) {
    last_alias = std::max(last_alias.load(), alias.number);
    if (!aliases.empty()) {
      Alias& last = aliases.back();
      // For what was saved before it, the bytes are those that it was laid on.
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

}  // namespace

void ResultAliases::note_results(c10::ArrayRef<at::Tensor> results) noexcept {
  for (const at::Tensor& result : results) {
    if (result.defined() && result.has_storage())
      results_of_regions.add(result.storage().unsafeGetStorageImpl());
  }
}

bool ResultAliases::may_be_result(const at::Tensor& tensor) noexcept {
  return has_layout(tensor) && memory_of(tensor) && !tensor.is_inference() && tensor.is_cpu() &&
         results_of_regions.may_have(tensor.storage().unsafeGetStorageImpl());
}

void ResultAliases::before_alias(const at::Tensor& result) {
  add(result, hash_of(result));
}

bool ResultAliases::changed(const SavedVersion& saved) {
  if (C10_LIKELY(saved.writes() >= last_alias.load(std::memory_order_acquire))) return false;
  const std::vector<Alias> later = find_after(saved.writes(), saved.counter());
  return std::any_of(later.begin(), later.end(),
                     [](const Alias& alias) { return alias.changed(); });
}

}  // namespace remat
