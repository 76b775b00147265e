// SPDX-License-Identifier: BSD-3-Clause

// Shadows of what the forward wrote outside, and checks of ops on memory from outside.
#include "replay_memory.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include <remat/engine/current_node.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/replay_mismatch.h>

#include <ATen/ops/as_strided.h>

#include <remat/engine/storage_bytes.h>
#include <remat/engine/unseen.h>
#include <remat/engine/write_kind.h>

namespace remat {
namespace {

/// Gives `shadow` the graph position of `original` before the forward wrote it. If that position is
/// unknown, gives the present one, unless `original` was outside any graph.
void copy_place(const at::Tensor& original, const OutsideStorage& outside, const NodeRange& forward,
                const at::Tensor& shadow) {
  if (const GraphPlace* const place = outside.place_before_write(original))
    return place->give_to(shadow);
  // The original may require grad only since the forward, in which it was outside any graph.
  if (!outside.is_written() && !outside.meta().requires_grad()) return;
  const torch::autograd::Node* const node =
      original.requires_grad() ? current_node(original) : nullptr;
  const bool was_moved = node && forward.contains(*node);
  if (!was_moved || outside.meta().requires_grad()) GraphPlace(original).give_to(shadow);
}

/// The function by which autograd recreates the view from its base; null if autograd uses
/// as_strided(), which cannot make a view with another dtype or conjugation.
const torch::autograd::ViewFunc* view_function(const at::Tensor& view) {
  const auto* const meta = torch::autograd::impl::get_view_autograd_meta(view);
  const bool has_one = meta && meta->has_bw_view() && meta->get_backward_view().has_view_fn();
  return has_one ? &meta->get_backward_view().view_fn() : nullptr;
}

/// True for an autograd view that can be made from its base: false if the view or its base has been
/// given other memory.
bool is_view_of_base(const at::Tensor& tensor) {
  if (!tensor.is_view() || !has_layout(tensor)) return false;
  const at::Tensor base(tensor._base());
  if (memory_of(tensor) != memory_of(base)) return false;
  return view_function(tensor) ||
         (base.scalar_type() == tensor.scalar_type() && !tensor.is_conj() && !tensor.is_neg() &&
          !base.is_conj() && !base.is_neg());
}

/// Returns the view of `base` that corresponds to `like`, a view of another base. A write to the
/// returned view also writes `base`, in the graph too.
at::Tensor view_in_graph(const at::Tensor& base, const at::Tensor& like) {
  const Unseen unseen;
  const c10::AutoGradMode grad(true);
  if (const torch::autograd::ViewFunc* const view = view_function(like)) return (*view)(base);
  return at::as_strided(base, like.sizes(), like.strides(), like.storage_offset());
}

/// Returns 0 for a tensor without plain strides, which cannot be resized either.
size_t bytes_spanned(const at::Tensor& tensor) {
  return has_layout(tensor) ? TensorLayout(tensor).bytes_spanned() : 0;
}

}  // namespace

ReplayMemory::ReplayMemory(const Region& region)
    : region_(region), outside_(region.outside().size()) {
  const OutsideLog& outside = region.outside();
  std::vector<at::Tensor> kept(outside_.size());
  for (const auto i : c10::irange(outside_.size())) {
    storages_.enter(outside[i].address(), Origin::outside(i));
    kept[i] = outside[i].unpack_kept();
  }
  // All shadows are made now, not when an op needs one: otherwise a nested region could mistake a
  // new shadow for a storage of its own that had the same address.
  for (const auto i : c10::irange(outside_.size())) {
    if (!kept[i].defined()) continue;
    const c10::Storage storage = kept[i].storage();
    outside_[i].shadow = outside[i].unpacks_afresh() ? storage : clone_bytes(storage).storage();
    if (const ByteRanges* const known = outside[i].known()) outside_[i].known = *known;
    storages_.enter(outside_[i].shadow.unsafeGetStorageImpl(), Origin::outside(i));
    // If a backward in an outer region's function runs this replay, outer scopes count the shadow
    // as made inside.
    OpObserver::all_adopt(outside_bytes(i));
  }
}

at::Tensor ReplayMemory::outside_bytes(size_t number) const {
  const c10::Storage& shadow = outside_[number].shadow;
  return shadow ? lay_out(shadow, TensorLayout::flat(shadow.nbytes(), c10::kByte)) : at::Tensor();
}

void ReplayMemory::put_outside(size_t number, const at::Tensor& value) {
  copy_bytes(value.storage(), outside_[number].shadow);
  outside_[number].known.reset();
}

c10::Storage ReplayMemory::shadow_of_argument(size_t i) const {
  const c10::ArrayRef<Origin> arguments = region_.outside().arguments();
  if (i >= arguments.size() || !arguments[i].is_outside()) return {};
  return outside_[arguments[i].number()].shadow;
}

void ReplayMemory::enter_argument(size_t i, const at::Tensor& input, int64_t moved) {
  // The constructor has entered the forward's storage, but hooks bring arguments back on another.
  const c10::ArrayRef<Origin> origins = region_.outside().arguments();
  if (i >= origins.size() || !input.defined() || !origins[i].is_outside()) return;
  const void* const memory =
      is_freed(input) ? input.storage().unsafeGetStorageImpl() : memory_of(input);
  if (!memory) return;
  storages_.enter(memory, origins[i]);
  enter_parts(input, origins[i].number());
  if (moved != 0) moved_.emplace_back(memory, moved);
}

/// The argument's inner tensors may also be on other memory than in the forward.
void ReplayMemory::enter_parts(const at::Tensor& input, size_t number) {
  const InnerVersions* const before = region_.outside()[number].inner();
  if (C10_LIKELY(!before)) return;
  const std::vector<const void*> then = before->memories();
  const std::vector<const void*> now = InnerVersions::memories(inner_tensors(input));
  for (size_t k = 0; k < then.size() && k < now.size(); ++k) {
    const Origin origin = region_.outside().find(then[k]);
    if (origin.is_outside() && now[k]) storages_.enter(now[k], origin);
  }
}

Origin ReplayMemory::origin_of(const at::Tensor& tensor, const void* memory) const {
  if (C10_LIKELY(memory)) return storages_.find(memory);
  // The tensor's memory was freed, but the storage may have a shadow.
  const Origin origin =
      is_freed(tensor) ? storages_.find(tensor.storage().unsafeGetStorageImpl()) : Origin::inside();
  return origin.is_outside() ? origin : Origin::inside();
}

// See Note [Wrappers].
Origin ReplayMemory::enter_wrapper(const at::Tensor& wrapper) {
  const std::vector<at::Tensor> inner = inner_tensors(wrapper);
  Origin origin = storages_.find_made(inner);
  if (origin.is_unknown()) {
    std::vector<const void*> memories = InnerVersions::memories(inner);
    for (const void*& memory : memories) {  // Moved memory gets its address in the forward.
      const Origin part = storages_.find(memory);
      if (part.is_outside()) memory = region_.outside()[part.number()].address();
    }
    origin = region_.outside().find_wrapper(memories);
    if (origin.is_outside()) outside_[origin.number()].is_wrapper_made_again = true;
  }
  if (origin.is_unknown()) return origin;
  storages_.enter_wrapper(wrapper, origin);
  return origin;
}

SeenTensor ReplayMemory::see(const at::Tensor& tensor, const void* memory) {
  Origin origin = origin_of(tensor, memory);
  if (C10_UNLIKELY(origin.is_unknown()) && is_of_python_class(tensor))
    origin = enter_wrapper(tensor);
  return {.tensor = has_shadow(tensor, origin) ? &shadow_of(tensor, origin) : &tensor,
          .origin = origin,
          .moved = moved(tensor)};
}

/// Checks only memory that existed before the region, because the region may free and refill memory
/// that it makes.
void ReplayMemory::check_not_freed(const OpCall& call, size_t argument, const at::Tensor& tensor,
                                   size_t slot) const {
  if (C10_LIKELY(memory_of(tensor)) || !is_freed(tensor)) return;
  if (!call.info().needs_memory() || call.writes_argument(argument)) return;
  const Origin origin = origin_of(tensor);
  TORCH_CHECK(!origin.is_outside() || has_shadow(tensor, origin), at_slot(region_, slot), ", op ",
              call.info().name(), " (", TensorMeta(tensor).str(), "): ", kMemoryFreed,
              kGiveMemoryBack);
}

bool ReplayMemory::exchange(OpCall& call) {
  bool any = false;
  for (const auto i : c10::irange(call.info().argument_count())) {
    c10::IValue& value = call.argument(i);
    bool has_any = false;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      has_any = has_any || has_shadow(tensor, origin_of(tensor));
    });
    if (!has_any) continue;
    any = true;
    transform_tensors(value, [&](const at::Tensor& tensor) { return stand_in(tensor); });
  }
  if (any) call.collect();
  return any;
}

at::Tensor ReplayMemory::stand_in(const at::Tensor& tensor) {
  const Origin origin = origin_of(tensor);
  return has_shadow(tensor, origin) ? shadow_of(tensor, origin) : tensor;
}

torch::autograd::Edge ReplayMemory::stand_in(const torch::autograd::Edge& edge) const {
  for (const auto& [impl, shadow] : tensors_) {
    const bool is_in_graph = shadow.original.requires_grad() && shadow.tensor.requires_grad() &&
                             !is_stale_view(shadow.original);
    if (is_in_graph && torch::autograd::impl::gradient_edge(shadow.original) == edge)
      return torch::autograd::impl::gradient_edge(shadow.tensor);
  }
  return edge;
}

bool ReplayMemory::has_shadow_in_graph() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& entry) { return entry.second.tensor.requires_grad(); });
}

void ReplayMemory::check_outside(const OpCall& call, size_t slot) {
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    const Origin origin = origin_of(tensor);
    if (origin.is_outside()) check_read(call, tensor, origin.number(), slot);
    const bool has_parts = origin.is_outside() && outside_[origin.number()].known;
    if (has_parts) check_known(call, i, tensor, origin.number(), slot);
    const bool is_ours =
        !origin.is_unknown() &&
        (!origin.is_outside() ||
         (is_shadow(tensor, origin) && region_.outside()[origin.number()].is_written()));
    TORCH_CHECK(is_ours || !call.writes_argument(i), at_slot(region_, slot), ", op ",
                call.info().name(),
                ": expected to write what the forward wrote, got another tensor (",
                TensorMeta(tensor).str(),
                ") from outside the region. Make what the function writes depend on its "
                "arguments only.");
  });
  if (call.info().writes()) note_written(call);
}

// See Note [What a write keeps].
void ReplayMemory::check_known(const OpCall& call, size_t argument, const at::Tensor& tensor,
                               size_t number, size_t slot) const {
  const bool reads = call.info().reads_data() && (!call.writes_argument(argument) ||
                                                  write_kind(call, argument) == WriteKind::kReads);
  if (!reads || !is_shadow(tensor, Origin::outside(number)) || !has_layout(tensor)) return;
  const TensorLayout layout(tensor);
  const std::optional<ByteRuns> runs = runs_of(layout);
  const ByteRanges& known = *outside_[number].known;
  const bool is_known = runs
                            ? std::all_of(runs->begin(), runs->end(),
                                          [&](const ByteRange& run) { return known.contains(run); })
                            : known.contains(span_of(layout));
  if (is_known) return;
  throw ReplayMismatch(
      c10::str(at_slot(region_, slot), ", op ", call.info().name(),
               ": expected to read the parts of a tensor from outside the region that the forward "
               "read (",
               region_.outside()[number].meta().str(), "), got another part (",
               TensorMeta(tensor).str(), " at element ", tensor.storage_offset(),
               "), of which nothing is kept, since the region writes the tensor.", kMakeItDepend));
}

/// Adds to the known bytes those that the op writes without reading.
void ReplayMemory::note_written(const OpCall& call) {
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (!call.writes_argument(i) || write_kind(call, i) != WriteKind::kWhole) return;
    const Origin origin = origin_of(tensor);
    if (!origin.is_outside() || !is_shadow(tensor, origin) || !has_layout(tensor)) return;
    std::optional<ByteRanges>& known = outside_[origin.number()].known;
    if (!known) return;
    for (const ByteRange& run : runs_of(TensorLayout(tensor)).value_or(ByteRuns())) known->add(run);
  });
}

void ReplayMemory::check_read(const OpCall& call, const at::Tensor& tensor, size_t number,
                              size_t slot) {
  const OutsideStorage& outside = region_.outside()[number];
  if (!reads_data(call.info(), tensor) || !outside.is_read() || outside_[number].checked) return;
  outside_[number].checked = true;
  TORCH_CHECK(!is_freed(tensor) || call.info().writes(), at_slot(region_, slot), ", op ",
              call.info().name(), " (", TensorMeta(tensor).str(), "): ", kMemoryFreed,
              kGiveMemoryBack);
  outside.check_inner(tensor, /*may_be_copy=*/outside_[number].is_wrapper_made_again,
                      [&] { return at_slot(region_, slot) + ", op " + call.info().name(); });
  // The tensor may be an argument that hooks have copied. A copy's version counter tells nothing.
  if (outside.address() != memory_of(tensor)) return;
  outside.check_unchanged(tensor,
                          [&] { return at_slot(region_, slot) + ", op " + call.info().name(); });
}

bool ReplayMemory::has_shadow(const at::Tensor& tensor, Origin origin) const {
  return origin.is_outside() && outside_[origin.number()].shadow && !is_shadow(tensor, origin);
}

bool ReplayMemory::is_shadow(const at::Tensor& tensor, Origin origin) const {
  return origin.is_outside() &&
         outside_[origin.number()].shadow.unsafeGetStorageImpl() == memory_of(tensor);
}

const at::Tensor& ReplayMemory::shadow_of(const at::Tensor& tensor, Origin origin) {
  Shadow& shadow = tensors_[tensor.unsafeGetTensorImpl()];
  if (shadow.tensor.defined()) return shadow.tensor;
  const size_t number = origin.number();
  const c10::Storage& storage = outside_[number].shadow;
  TORCH_CHECK(bytes_spanned(tensor) <= storage.nbytes(), "[replay] ", region_.label(),
              ": expected the tensor ", region_.outside()[number].meta().str(),
              " from outside the region to have the size that it had in the forward, got ",
              TensorMeta(tensor).str(), ". Do not resize it.");
  shadow.original = tensor;
  if (is_view_of_base(tensor)) {
    shadow.tensor = view_in_graph(shadow_of(at::Tensor(tensor._base()), origin), tensor);
    by_shadow_.emplace(shadow.tensor.unsafeGetTensorImpl(), &shadow);
    return shadow.tensor;
  }
  shadow.tensor = view_storage(storage, tensor);
  by_shadow_.emplace(shadow.tensor.unsafeGetTensorImpl(), &shadow);
  copy_place(tensor, region_.outside()[number], region_.nodes(), shadow.tensor);
  return shadow.tensor;
}

// In-place ops return the tensor that the function has passed, not its shadow.
const at::Tensor& ReplayMemory::original_of(const at::Tensor& tensor) const {
  const auto entry = by_shadow_.find(tensor.unsafeGetTensorImpl());
  return entry == by_shadow_.end() ? tensor : entry->second->original;
}

int64_t ReplayMemory::moved(const at::Tensor& tensor) const {
  for (const auto& [memory, bytes] : moved_) {
    if (memory == memory_of(tensor)) return bytes;
  }
  return 0;
}

bool ReplayMemory::is_same_foreign_memory(size_t number, const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  const c10::Storage& storage = tensor.storage();
  const OutsideStorage& outside = region_.outside()[number];
  if (!storage || !outside.is_gone_foreign_memory() || !outside.has_bytes_of(storage)) return false;
  storages_.enter(storage.unsafeGetStorageImpl(), Origin::outside(number));
  matched_.emplace_back(storage.getWeakStorageImpl());
  return true;
}

bool ReplayMemory::has_origin(const at::Tensor& tensor, Origin logged, bool is_saved_by_user) {
  const Origin now = region_.outside().logged(origin_of(tensor));
  const bool is_viewed = logged.is_outside() && now.is_inside() &&
                         std::find(viewed_unknown_.begin(), viewed_unknown_.end(),
                                   memory_of(tensor)) != viewed_unknown_.end();
  if (now.value() == logged.value() || !is_known(logged)) return true;
  if (!is_viewed && !is_known(now)) return true;
  if ((!is_viewed && !now.is_unknown()) || !logged.is_outside()) return false;
  // An op may save a tensor that it has made below autograd, where no op is observed. The log then
  // has the memory as from outside, although it is freed later.
  const OutsideStorage& outside = region_.outside()[logged.number()];
  // Values on CUDA are not compared. So a tensor that a custom function saves there must be a
  // parameter, because only parameters are expected to be gathered anew.
  const bool may_be_saved = !has_layout(tensor) || (tensor.is_cuda() && is_saved_by_user
                                                        ? is_parameter(tensor)
                                                        : outside.may_be_saved(tensor.storage()));
  const bool is_made_again = outside.is_gone() && may_be_saved;
  return is_made_again || is_same_foreign_memory(logged.number(), tensor);
}

}  // namespace remat
