// SPDX-License-Identifier: BSD-3-Clause

// Waiting for collectives before copying what they write.
#include "pending_writes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include <remat/engine/collective_work.h>
#include <remat/engine/op_call.h>

namespace remat {

void PendingWrites::add(const c10::IValue& work, bool is_receive,
                        std::vector<const void*> memories) {
  std::erase_if(writing_, [](const Writing& entry) { return has_ended(entry.work); });
  if (!work.isNone() && !has_ended(work))
    writing_.push_back({work, is_receive, std::move(memories)});
}

void PendingWrites::add_functional(c10::ArrayRef<at::Tensor> results) {
  auto& group = functional_.emplace_back();
  for (const at::Tensor& result : results) group.emplace_back(result.getIntrusivePtr());
}

void PendingWrites::settle_functional(const void* memory) {
  std::erase_if(functional_, [&](const std::vector<OutsideStorage::WeakTensor>& group) {
    std::vector<at::Tensor> results;
    for (const OutsideStorage::WeakTensor& result : group) {
      if (at::Tensor alive(result.lock()); alive.defined()) results.push_back(std::move(alive));
    }
    const bool is_of_it =
        std::any_of(results.begin(), results.end(),
                    [&](const at::Tensor& result) { return memory_of(result) == memory; });
    if (is_of_it) std::for_each(results.begin(), results.end(), &wait_for_functional);
    return is_of_it;
  });
}

void PendingWrites::settle(const at::Tensor& tensor) {
  if (!functional_.empty()) settle_functional(memory_of(tensor));
  if (writing_.empty()) return;
  const void* const memory = memory_of(tensor);
  std::erase_if(writing_, [&](const Writing& entry) {
    if (has_ended(entry.work)) return true;
    if (std::find(entry.memories.begin(), entry.memories.end(), memory) == entry.memories.end())
      return false;
    TORCH_CHECK_NOT_IMPLEMENTED(
        !entry.is_receive || !tensor.is_cpu(), "[checkpoint] ", region_.label(),
        ": expected a tensor that is received to be read after its Work has been waited for, got "
        "one of which a part is read before. Wait first, or receive into memory of its own.");
    wait_for(entry.work);
    return true;
  });
}

}  // namespace remat
