// SPDX-License-Identifier: BSD-3-Clause

// Keeping a collective's results for the host and for code that waits.
#include "call_collectives.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <string>
#include <utility>

#include <remat/engine/collective_work.h>
#include <remat/engine/held_storage.h>

namespace remat {
namespace {

constexpr size_t kSmallBytes = 4096;

/// True for data that a function may read without an op: sizes and counts by tolist(), objects by
/// pickle, a loss by numpy(). Such data is kept, because no op shows remat the read.
bool may_be_read_by_host(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage()) return false;
  const bool is_integral = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  return is_integral || tensor.storage().nbytes() <= kSmallBytes;
}

/// True for a receive. Its Work is not waited for twice: a second wait would expect another send.
bool is_receive(const std::string& op) {
  return op.find("c10d::recv") != std::string::npos;
}

/// True if the caller waits for `call` later. Sends and receives have no flag, and count as async.
bool is_async(const OpCall& call) {
  const auto& arguments = call.info().op().schema().arguments();
  for (const auto i : c10::irange(arguments.size())) {
    if (arguments[i].name() == "async_op") return call.argument(i).toBool();
  }
  return true;
}

}  // namespace

void CallCollectives::before_op(const OpCall& call) {
  is_async_ = is_async(call);
}

// Collectives write without a new version, so autograd does not notice that a saved tensor has
// changed, and uses the new value. A replay would give autograd the old value.
void CallCollectives::note_received(const OpInfo& op, const at::Tensor& tensor,
                                    Origin origin) const {
  for (const Slot& slot : state_.slot_region()->slots()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !slot.version.is_of(tensor), "[checkpoint] ", state_.region->label(), ", slot ", slot.index,
        ", op ", op.name(),
        ": expected collectives that write what no op of the region has saved, got one that writes "
        "a saved tensor (",
        slot.meta.str(),
        "), of which autograd would use the new values in silence. Write to a clone.");
  }
  if (origin.is_outside()) state_.region->outside()[origin.number()].mark_received();
}

void CallCollectives::end_call(const SavedCall& call, const CallResults& results) {
  const c10::IValue& work = results.work;
  if (call.record->call.collective.find("_c10d_functional") != std::string::npos)
    return note_functional(call, results.tensors);
  if (call.written.empty()) return;
  std::vector<const void*> memories;
  for (const SavedCall::Written& written : call.written)
    memories.push_back(memory_of(written.tensor));
  pending_.add(work, is_receive(call.record->call.name), std::move(memories));
  for (const SavedCall::Written& written : call.written) {
    if (!may_be_read_by_host(written.tensor)) continue;
    if (work.isNone() || !is_async_) {
      keep_for_host(written.tensor);
    } else {
      unread_.push_back({written.tensor, state_.region->slots().size(), work});
    }
  }
}

// See Note [Functional collectives].
void CallCollectives::note_functional(const SavedCall& call, c10::ArrayRef<at::Tensor> results) {
  if (!call.record->call.collective.ends_with("wait_tensor"))
    return pending_.add_functional(results);
  for (const at::Tensor& result : results) {
    if (may_be_read_by_host(result)) keep_for_host(result);
  }
}

void CallCollectives::read_inside(const at::Tensor& wrapper, const OpInfo* reader) {
  if (state_.is_saving) return;
  for (const at::Tensor& inner : inner_tensors(wrapper)) {
    const Origin origin = state_.storages.find(memory_of(inner));
    if (origin.is_product()) products_.read(origin.number(), inner, reader);
    if (origin.is_outside()) products_.need(inner);  // A SAVE call may have written `inner`.
  }
}

void CallCollectives::keep_for_host(const at::Tensor& tensor) {
  const Origin origin = state_.storages.find(memory_of(tensor));
  if (origin.is_product()) products_.read(origin.number(), tensor, /*reader=*/nullptr);
}

void CallCollectives::finish() {
  if (unread_.empty()) return;  // First, because a region without calls has no call log.
  CallLog& calls = state_.region->calls();
  for (const Unread& entry : std::exchange(unread_, {})) {
    if (!has_ended(entry.work)) continue;
    const Origin origin = state_.storages.find(memory_of(entry.tensor));
    if (origin.is_product()) calls.product(origin.number()).mark_in_slot(entry.slot);
    keep_for_host(entry.tensor);
  }
}

}  // namespace remat
