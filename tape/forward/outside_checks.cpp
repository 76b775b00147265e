// SPDX-License-Identifier: BSD-3-Clause

// Operations on outside memory that a forward refuses.
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include <remat/tape/autocast_cache.h>

#include "outside_watch.h"
#include "storage_bytes.h"

namespace remat {

// The region may have written the leaf since: Note [Stale casts].
void OutsideWatch::check_known_cast(const at::Tensor& tensor, Origin origin) {
  if (!region_.outside().logged(origin).is_cast()) return;
  const at::Tensor leaf = autocast_source(tensor);
  if (leaf.defined() && is_known_cast(tensor) && is_stale_cast(tensor, leaf))
    refuse_stale_cast(leaf);
}

void OutsideWatch::refuse_stale_cast(const at::Tensor& leaf) {
  if (!stale_cast_) stale_cast_.emplace(leaf);
  if (!state_.recorder || state_.recorder->gave_up()) check_no_stale_cast();
}

void OutsideWatch::check_no_stale_cast() const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !stale_cast_, "[checkpoint] ", region_.label(),
      ": expected casts in autocast's cache that have the values of their weights, got one of a "
      "weight (",
      stale_cast_->str(),
      ") that was written after it was cast, which the replay would cast anew. Leave the autocast "
      "block before the weight is written, call torch.clear_autocast_cache() after it, or use "
      "replay = kTape (\"tape\").");
}

void OutsideWatch::refuse_unshard(const OpInfo& info) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[checkpoint] ", region_.label(), ", op ", info.name(),
      ": expected weights that are whole before the region begins, got some that are gathered "
      "inside "
      "it (FSDP's unshard), which a replay in backward would not do again. ",
      kCheckpointInside);
}

void OutsideWatch::check_plain(const OpInfo& info, const at::Tensor& tensor) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_of_python_class(tensor), "[checkpoint] ", region_.label(), ", op ", info.name(),
      ": expected in-place ops on plain tensors from outside the region, got one on a tensor of a "
      "Python class of its own with __torch_dispatch__ (",
      TensorMeta(tensor).str(),
      "), of whose memory no copy can be kept. Write it outside of the region, or use the op's "
      "out-of-place form.");
}

void OutsideWatch::check_writable(const OpInfo& info, const at::Tensor& tensor,
                                  Origin origin) const {
  if (!origin.is_outside()) return;
  if (is_of_python_class(tensor) && !accumulates_grad()) check_plain(info, tensor);
  const OutsideStorage& outside = region_.outside()[origin.number()];
  TORCH_CHECK_NOT_IMPLEMENTED(
      !info.changes_metadata(), "[checkpoint] ", region_.label(), ", op ", info.name(),
      ": expected in-place ops that write data only, got one that changes the shape or storage of "
      "a tensor from outside the region (",
      outside.meta().str(),
      "); its replay would start from the changed one. Use the op's out-of-place form. What takes "
      "its shape in its first step only (an observer): run the function once before.");
  TORCH_CHECK_NOT_IMPLEMENTED(
      outside.has_storage(), "[checkpoint] ", region_.label(), ", op ", info.name(),
      ": expected in-place ops on strided tensors from outside the region, got one on a sparse or "
      "opaque tensor (",
      TensorMeta(tensor).str(),
      "), of which no copy can be kept. Write it outside of the region, or use the op's "
      "out-of-place form.");
  if (C10_UNLIKELY(outside.is_foreign())) check_unshared(info, tensor);
}

// If two tensors share memory, a replay would write a copy of one and read the other.
void OutsideWatch::check_unshared(const OpInfo& info, const at::Tensor& tensor) const {
  const c10::Storage& storage = tensor.storage();
  const auto& products = std::as_const(region_).calls().products();
  const bool is_shared =
      state_.storages.has_memory_of(storage) ||
      std::any_of(products.begin(), products.end(), [&](const CallProduct& product) {
        return overlap(storage, product.storage().lock());
      });
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_shared, "[checkpoint] ", region_.label(), ", op ", info.name(),
      ": expected in-place ops on tensors that share memory through ops, got one on a tensor (",
      TensorMeta(tensor).str(),
      ") that was laid on the memory of one that the region has made, without an op "
      "(torch.from_dlpack, from_numpy, from_blob): a replay would not find the write there. Write "
      "that tensor itself, or a clone() of it.");
}

void OutsideWatch::check_sizes() const {
  const OutsideLog& outside = region_.outside();
  for (const auto i : c10::irange(outside.size()))
    outside[i].check_size([&] { return "[checkpoint] " + region_.label(); });
}

}  // namespace remat
