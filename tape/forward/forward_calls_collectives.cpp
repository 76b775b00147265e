// SPDX-License-Identifier: BSD-3-Clause

// SAVE calls of collectives, which may go on after the op has returned.
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include <remat/tape/collective_work.h>
#include <remat/tape/held_storage.h>

#include "forward_calls.h"

namespace remat {
namespace {

constexpr size_t kSmallBytes = 4096;

/// What a function may read without an op: sizes and counts by tolist(), objects by pickle, a loss
/// by numpy(). A replay could not say that it lacks the value.
bool may_be_read_by_host(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage()) return false;
  const bool is_integral = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  return is_integral || tensor.storage().nbytes() <= kSmallBytes;
}

/// A send or receive has one reader or writer at the other end, of which nobody waits twice.
bool is_receive(const std::string& op) {
  return op.find("c10d::recv") != std::string::npos;
}

}  // namespace

// Note [Writes that go on]: an op of c10d returns a Work, and writes until somebody has waited for
// that, which nobody sees. What the function reads before it waits is not what the collective
// writes, but it may have the same storage, of which all bytes are kept. So the copy waits first.
void ForwardCalls::note_work(const CallResults& results) {
  const c10::IValue& work = results.work;
  if (saved_.record->call.collective.find("_c10d_functional") != std::string::npos)
    return note_functional(results.tensors);
  if (saved_.written.empty()) return;
  std::erase_if(writing_, [](const Writing& entry) { return has_ended(entry.work); });
  if (!work.isNone() && !has_ended(work)) {
    Writing& entry = writing_.emplace_back(Writing{work, is_receive(saved_.record->call.name), {}});
    for (const Written& written : saved_.written)
      entry.memories.push_back(memory_of(written.tensor));
  }
  for (const Written& written : saved_.written) {
    if (!may_be_read_by_host(written.tensor)) continue;
    if (work.isNone() || !is_async_) {
      keep_for_host(written.tensor);
    } else {
      unread_.push_back({written.tensor, region_->slots().size(), work});
    }
  }
}

// Note [Functional collectives]: they return no Work. LibTorch has a table of these by the results,
// which a process group may write by ops of its own, on a thread of its own, and so give new
// versions. What is kept of one waits for all that the collective returns, but not before an op
// reads it: other ranks may be there only after what this one sends next. The op that wraps a
// result in a tensor subclass reads nothing; ops on the subclass read what is inside.
void ForwardCalls::note_functional(c10::ArrayRef<at::Tensor> results) {
  has_functional_ = true;
  if (saved_.record->call.collective.ends_with("wait_tensor")) {
    for (const at::Tensor& result : results) {
      if (may_be_read_by_host(result)) keep_for_host(result);
    }
    return;
  }
  auto& group = functional_.emplace_back();
  for (const at::Tensor& result : results) group.emplace_back(result.getIntrusivePtr());
}

void ForwardCalls::settle_functional(const void* memory) {
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

void ForwardCalls::read_inside(const at::Tensor& wrapper, const OpInfo* reader) {
  if (!has_functional_ || saving()) return;
  for (const at::Tensor& inner : inner_tensors(wrapper)) {
    const Origin origin = scope_.storages_.find(memory_of(inner));
    if (origin.is_product()) read_product(origin.number(), inner, reader);
  }
}

// An op that throws may have written a part, with no new version. A replay runs the call again up
// to where it threw, and nobody compares what it does.
void ForwardCalls::check_thrown() const {
  if (threw_writing_ == kNone) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, where(region_->calls().records()[threw_writing_].call),
      ": expected a SAVE call that writes what it has not made to return, got one that "
      "threw, and a function that went on: what it has written until then a replay could not tell. "
      "Catch the exception outside of the region, or use the policy RECOMPUTE.");
}

// What has been waited for in the function.
void ForwardCalls::finish() {
  check_thrown();
  check_exchanged();
  keep_read_by_thrown();
  for (const Unread& entry : std::exchange(unread_, {})) {
    if (!has_ended(entry.work)) continue;
    const Origin origin = scope_.storages_.find(memory_of(entry.tensor));
    if (origin.is_product()) region_->calls().product(origin.number()).mark_in_slot(entry.slot);
    keep_for_host(entry.tensor);
  }
}

// Collectives write without a new version: autograd does not notice that what it has saved is
// another value by now, and goes on with that. A replay would give it the old one.
void ForwardCalls::note_received(const OpInfo& op, const at::Tensor& tensor, Origin origin) const {
  for (const Slot& slot : scope_.slot_region()->slots()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !slot.version.is_of(tensor), "[checkpoint] ", region_->label(), ", slot ", slot.index,
        ", op ", op.name(),
        ": expected collectives that write what no op of the region has saved, got one that writes "
        "a saved tensor (",
        slot.meta.str(),
        "), of which autograd would use the new values in silence. Write to a clone.");
  }
  if (origin.is_outside()) region_->outside()[origin.number()].mark_received();
}

bool ForwardCalls::is_of_collective(size_t product) const {
  const CallLog& calls = region_->calls();
  return !calls.records()[calls.product(product).call()].call.collective.empty();
}

void ForwardCalls::keep_for_host(const at::Tensor& tensor) {
  const Origin origin = scope_.storages_.find(memory_of(tensor));
  if (origin.is_product()) read_product(origin.number(), tensor, /*reader=*/nullptr);
}

void ForwardCalls::settle(const at::Tensor& tensor) {
  if (!functional_.empty()) settle_functional(memory_of(tensor));
  if (writing_.empty()) return;
  const void* const memory = memory_of(tensor);
  std::erase_if(writing_, [&](const Writing& entry) {
    if (has_ended(entry.work)) return true;
    if (std::find(entry.memories.begin(), entry.memories.end(), memory) == entry.memories.end())
      return false;
    TORCH_CHECK_NOT_IMPLEMENTED(
        !entry.is_receive || !tensor.is_cpu(), "[checkpoint] ", region_->label(),
        ": expected a tensor that is received to be read after its Work has been waited for, got "
        "one of which a part is read before. Wait first, or receive into memory of its own.");
    wait_for(entry.work);
    return true;
  });
}

}  // namespace remat
