// SPDX-License-Identifier: BSD-3-Clause

// The process-wide log of exchanges.
#include "exchanged_memory.h"

#include <c10/macros/Macros.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include <remat/tape/unversioned_writes.h>

#include "version_table.h"

namespace remat {
namespace {

std::atomic<uint64_t> last_exchange{0};

/// The last exchange of one tensor.
struct Exchange {
  const void* tensor;  // not to be looked into
  uint64_t number;
  bool is_given_up;
};

/// Exchanges of all tensors with the same versions.
VersionTable<std::vector<Exchange>>& exchanges() {
  static auto& table = *new VersionTable<std::vector<Exchange>>(/*few=*/256);
  return table;
}

}  // namespace

void ExchangedMemory::note(const at::Tensor& tensor) {
  const c10::TensorImpl* const address = tensor.unsafeGetTensorImpl();
  const bool is_given_up = tensor.has_storage() && tensor.numel() == 0;
  exchanges().change(address->version_counter(), [&](std::vector<Exchange>& tensors) {
    const uint64_t number = UnversionedWrites::next();
    const auto known = std::find_if(tensors.begin(), tensors.end(), [&](const Exchange& exchange) {
      return exchange.tensor == address;
    });
    if (known == tensors.end()) {
      tensors.push_back({address, number, is_given_up});
    } else {
      *known = {address, number, is_given_up};
    }
    last_exchange.store(number, std::memory_order_release);
  });
}

ExchangedMemory::Now ExchangedMemory::find(const SavedVersion& saved) {
  if (C10_LIKELY(saved.writes() >= last_exchange.load(std::memory_order_acquire)))
    return Now::kThere;
  Now now = Now::kThere;
  exchanges().read(saved.counter(), [&](const std::vector<Exchange>& tensors) {
    for (const Exchange& exchange : tensors) {
      if (exchange.tensor == saved.tensor() && exchange.number > saved.writes())
        now = exchange.is_given_up ? Now::kGivenUp : Now::kElsewhere;
    }
  });
  return now;
}

}  // namespace remat
