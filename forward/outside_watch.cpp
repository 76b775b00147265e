// SPDX-License-Identifier: BSD-3-Clause

// Recording which outside memory a forward reads and writes, keeping old values that replays need,
// and refusing writes that replays cannot repeat.
#include "outside_watch.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <utility>

#include <remat/engine/autocast_cache.h>
#include <remat/engine/collective_work.h>
#include <remat/engine/current_node.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/stream_use.h>
#include <remat/engine/write_kind.h>

namespace remat {

bool accumulates_grad() {
  const auto node = torch::autograd::get_current_node();
  return node && dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
}

Origin OutsideWatch::origin_of(const at::Tensor& tensor) {
  const void* const memory = memory_of(tensor);
  if (!memory) return Origin::inside();
  Origin origin = state_.storages.find(memory);
  // A cast that a SAVE call left in autocast's cache counts like other cached casts, because a
  // replay casts again.
  const bool may_be_cached = origin.is_unknown() || (origin.is_in_call() && !state_.is_saving &&
                                                     autocast_source(tensor).defined());
  if (!may_be_cached) return origin;
  if (const at::Tensor parameter = autocast_source(tensor); parameter.defined()) {
    const Origin source = origin_of(parameter);
    if (source.is_outside()) read(parameter, region_.outside()[source.number()]);
    origin = region_.outside().add(tensor);
    region_.outside()[origin.number()].mark_cast(Origin::cast_of(source, layout_hash(parameter)));
    region_.mark_casts_weights();
    if (is_stale_cast(tensor, parameter)) refuse_stale_cast(parameter);
  } else if (C10_UNLIKELY(is_of_python_class(tensor)) && origin.is_unknown()) {
    return origin_of_wrapper(tensor);
  } else {
    origin = region_.outside().add(tensor);
  }
  state_.storages.enter(memory, origin);
  return origin;
}

// Note [Wrappers]: a tensor subclass with __torch_dispatch__ (DTensor, TwoTensor, ...) is
// identified by its inner tensors, because the class makes wrappers by a constructor that no op
// shows, and a replay makes another wrapper. If the region has made an inner tensor, the region has
// made the wrapper. If all inner tensors are from outside, nobody can tell whether the wrapper is.
// So two wrappers of the same memory count as one, in the forward and in the replay.
Origin OutsideWatch::origin_of_wrapper(const at::Tensor& wrapper) {
  const std::vector<at::Tensor> inner = inner_tensors(wrapper);
  Origin origin = state_.storages.find_made(inner);
  if (origin.is_unknown()) origin = region_.outside().find_wrapper(InnerVersions::memories(inner));
  if (origin.is_unknown()) {
    wait_for_functional_in(wrapper);  // Before the versions are noted below.
    origin = region_.outside().add(wrapper);
  }
  state_.storages.enter_wrapper(wrapper, origin);
  return origin;
}

// Leaves out views that the region has made, recognised by their nodes. After a write, a view from
// outside may have a node of the region, too, so from then on all views are added.
void OutsideWatch::note_captured(const at::Tensor& tensor, Origin origin) {
  if (!tensor.requires_grad()) return;
  if (origin.is_outside()) {
    const OutsideStorage& outside = region_.outside()[origin.number()];
    if (outside.is_first_tensor(tensor)) return;
    const torch::autograd::Node* const node = current_node(tensor);
    if (!outside.is_written() && node && region_.nodes().contains(*node)) return;
  }
  region_.outside().add_captured(tensor);
}

// Refuses writes to outside wrappers and their views: only the class knows what memory is written.
void OutsideWatch::see_wrapper(const OpCall& call, size_t argument, const at::Tensor& tensor,
                               Origin origin) {
  const void* const memory = memory_of(tensor);
  const bool is_outside = origin.is_outside() || (memory && wrapper_views_.contains(memory));
  if (!is_outside) return;
  if (call.info().is_view()) views_wrapper_ = true;
  if (call.writes_argument(argument) && !accumulates_grad()) check_plain(call.info(), tensor);
}

void OutsideWatch::see(const OpCall& call, size_t argument, const at::Tensor& tensor,
                       Origin origin) {
  const OpInfo& info = call.info();
  OutsideStorage& outside = region_.outside()[origin.number()];
  if (!outside.has_storage() && !info.reads_data()) views_memory_ = true;
  const bool writes = call.writes_argument(argument);
  const bool is_written = writes && !accumulates_grad();  // If true, note_writes() follows.
  if (reads_data(info, tensor) && !is_written) read(tensor, outside);
  if (C10_UNLIKELY(outside.is_received()) && is_parameter(tensor)) refuse_unshard(info);
  note_captured(tensor, origin);
  if (!writes) return;
  check_writable(info, tensor, origin);
  writes_ = writes_ || is_written;
}

void OutsideWatch::read(const at::Tensor& tensor, OutsideStorage& outside) {
  outside.mark_read(tensor);
  if (!outside.is_written()) return;
  if (const auto part = outside.part_to_keep(tensor)) keep_part(tensor, outside, *part);
}

/// Notes that a replay reads `tensor` or, if `tensor` is a copy, its original for a slot, whether
/// or not an op has read the tensor.
void OutsideWatch::read_for_slot(const at::Tensor& tensor) {
  if (C10_UNLIKELY(is_of_python_class(tensor)) && state_.recorder) read_wrapper(tensor);
  const auto copied = copied_original(tensor);
  const at::Tensor& original = copied ? copied->tensor : tensor;
  const void* const memory = memory_of(original);
  const Origin origin = memory ? state_.storages.find(memory) : Origin::inside();
  if (!origin.is_outside()) return;
  if (!copied || copied->after_op) cover_written(/*op_has_ended=*/false);
  OutsideStorage& outside = region_.outside()[origin.number()];
  const bool is_whole = copied && tensor.nbytes() == original.storage().nbytes();
  read(is_whole ? lay_out(original.storage(), outside.whole()) : original, outside);
}

// A tape reads the inner tensors, because it rebuilds the wrapper from them.
void OutsideWatch::read_wrapper(const at::Tensor& wrapper) {
  for (const at::Tensor& part : inner_tensors(wrapper)) {
    if (is_of_python_class(part)) continue;
    const Origin origin = origin_of(part);
    if (origin.is_outside()) read(part, region_.outside()[origin.number()]);
  }
}

bool OutsideWatch::is_read(const at::Tensor& tensor) const {
  const void* const memory = memory_of(tensor);
  const Origin origin = memory ? state_.storages.find(memory) : Origin::inside();
  return origin.is_outside() && std::as_const(region_).outside()[origin.number()].is_read();
}

/// Notes which outside tensors the next op writes, and which of these it also reads. Memory that
/// the op overwrites without reading counts as made only when the op has run, because until then a
/// nested region may keep the old value.
void OutsideWatch::note_writes(const OpCall& call) {
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    const Origin origin = call.writes_argument(i) ? origin_of(tensor) : Origin::inside();
    if (!origin.is_outside()) return;
    OutsideStorage& outside = region_.outside()[origin.number()];
    if (!outside.is_written()) begin_write(tensor, outside);
    const WriteKind kind = write_kind(call, i);
    if (kind == WriteKind::kReads) read(tensor, outside);
    if (kind == WriteKind::kWhole)
      writes_whole_.push_back({origin.number(), tensor, SavedVersion(tensor)});
  });
}

// Returns true if the op views an outside tensor without storage, because a view of such a tensor,
// for example the values of a sparse one, is from outside, too.
bool OutsideWatch::see_view(const at::Tensor& view) {
  if (views_memory_) origin_of(view);
  if (views_wrapper_ && memory_of(view)) wrapper_views_.insert(memory_of(view));
  return views_memory_;
}

void OutsideWatch::cover_whole_writes(bool op_has_ended) {
  std::erase_if(writes_whole_, [&](const WholeWrite& write) {
    const bool has_written = op_has_ended || write.before.changed();
    if (has_written) region_.outside()[write.number].cover(write.tensor);
    return has_written;
  });
}

void OutsideWatch::begin_write(const at::Tensor& tensor, OutsideStorage& outside) {
  writes_any_ = true;
  outside.begin_write(tensor);
  if (const auto part = outside.part_read()) keep_part(tensor, outside, *part);
}

/// Keeps the present bytes of `part` of `tensor`, which the region writes, in outer scopes.
void OutsideWatch::keep_part(const at::Tensor& tensor, OutsideStorage& outside,
                             const TensorLayout& part) {
  const HiddenScopes outer(state_.scope);
  const at::Tensor original = lay_out(tensor.storage(), part);
  const SavedOriginalGuard guard(original);
  outside.keep(tensor.storage(), part);
  let_replays_wait(tensor.device(), region_.streams());
}

void OutsideWatch::keep_before_write(const at::Tensor& tensor, Origin origin) {
  OutsideStorage& outside = region_.outside()[origin.number()];
  if (!outside.is_written()) outside.begin_write(tensor);
  if (outside.known()) keep_part(tensor, outside, outside.whole());
}

// The region may have written the leaf since the cast: Note [Stale casts].
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

// Throws if `tensor` shares memory with a tensor that the region has made, because a replay would
// write a shadow of `tensor`, and the write would be missing in the other tensor.
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
